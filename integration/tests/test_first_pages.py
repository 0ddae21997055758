"""The pages that answer first questions: their scripts and commands run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    "install",
    "make-a-script-faster",
    "save-and-resume",
    "survive-a-dead-worker",
    "train-on-several-gpus",
]
BLOCK = re.compile(
    r"^```\{code-block\} (\w+)\n(?::caption: (\S+)\n\n)?(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
PYTHON = shlex.quote(sys.executable)
# What differs between a reader's machine and one that tests: its programs, how long a
# search may take, and how many devices there are.
HERE = {
    r"^torchrun": f"{PYTHON} -m torch.distributed.run",
    r"^drivetrain-(\w+)": rf"{PYTHON} -m drivetrain_\1.cli",
    r"^drivetrain\b": f"{PYTHON} -m drivetrain_core.cli",
    r"^python\b": PYTHON,
    r"--budget \w+": "--budget 10s",
    r"--nproc-per-node 8": "--nproc-per-node 2",
}
SAID = {"32 samples of each": "128 samples of each"}


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Returns the commands of a console, each with the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def test_commands_of_a_console_are_told_from_what_they_print():
    text = "$ a --b\nsaid\nand this\n$ c\n"
    assert commands(text) == [("a --b", ["said", "and this"]), ("c", [])]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("page", PAGES)
def test_page_does_what_it_says(page, tmp_path):
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DRIVETRAIN_CACHE_DIR": str(tmp_path)}
    ran = 0
    for kind, name, content in BLOCK.findall(text):
        if kind == "python":
            (tmp_path / name).write_text(content)
            continue
        for command, says in commands(content):
            for pattern, instead in HERE.items():
                command = re.sub(pattern, instead, command)
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env=env,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=240,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}"
            for line in says:
                for written, here in SAID.items():
                    line = line.replace(written, here)
                assert line in done.stdout.splitlines(), done.stdout
            ran += 1
    assert ran >= 1
