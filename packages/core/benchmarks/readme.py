"""Runs both commands of the README on a clean clone, in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from drivetrain_testing import Row

ROOT = Path(__file__).resolve().parents[3]
KEPT = ("HOME", "LANG", "PATH", "TMPDIR")


def commands(readme):
    """The lines that start with `python3 -m venv` in the README's shell blocks."""
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", readme, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("python3 -m venv")]


def measure(quick):
    """Minutes of each command, if both succeed."""
    if quick:
        return Row(figure="takes about 15 minutes", holds=None)
    if not (ROOT / ".git").exists():
        return Row(figure="needs a git checkout", holds=None)
    kept = (*KEPT, *(key for key in os.environ if key.startswith(("PIP_", "SSL_"))))
    env = {key: os.environ[key] for key in kept if key in os.environ}
    minutes, codes = [], []
    for number in range(2):
        with tempfile.TemporaryDirectory(prefix="clone-") as folder:
            subprocess.run(
                ["git", "clone", "-q", str(ROOT), folder], check=True, env=env
            )
            command = commands(Path(folder, "README.md").read_text("utf-8"))[number]
            start = time.monotonic()
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            minutes.append((time.monotonic() - start) / 60)
            codes.append(done.returncode)
    return Row(
        figure=f"exit {codes[0]} in {minutes[0]:.1f} min, "
        f"exit {codes[1]} in {minutes[1]:.1f} min",
        holds=codes == [0, 0],
        details={"minutes": minutes},
    )
