"""Writes the stubs of the extension modules beside them, or says which are old.

    python integration/rules/extension_stubs.py [--write]

They are what pybind11-stubgen makes of the modules that are installed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTENSIONS = (
    "drivetrain_checkpoint._extension",
    "drivetrain_comm.backend._extension",
    "drivetrain_memory._extension",
    "drivetrain_optim.fused._extension",
)


def stub_of(module: str) -> Path:
    """Returns where the stub of a module lies."""
    name = module.partition(".")[0].removeprefix("drivetrain_")
    file = Path(*module.split(".")).with_suffix(".pyi")
    return ROOT / "packages" / name / "src" / file


def make_stub(module: str) -> str:
    """Returns the stub of an installed module."""
    with tempfile.TemporaryDirectory() as folder:
        # Some are loaded after torch only.
        program = "import sys, torch; from pybind11_stubgen import main; main()"
        options = ["--numpy-array-use-type-var", "--exit-code", "-o", folder]
        command = [sys.executable, "-c", program, *options, module]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{module}: {done.stdout}{done.stderr}")
        return Path(folder, *module.split(".")).with_suffix(".pyi").read_text()


def old_stubs() -> list[str]:
    """Returns the modules that are installed and whose stubs say something else."""
    return [
        module
        for module in EXTENSIONS
        if importlib.util.find_spec(module) is not None
        and (
            not stub_of(module).exists()
            or stub_of(module).read_text() != make_stub(module)
        )
    ]


if __name__ == "__main__":
    old = old_stubs()
    if "--write" in sys.argv:
        for name in old:
            stub_of(name).write_text(make_stub(name))
        old = []
    sys.exit(f"old: {', '.join(old)}; run it with --write" if old else 0)
