"""Importing this module enables tuned process groups; see `drivetrain_comm.enable`.

As a program it runs another one, unchanged: `python -m drivetrain_comm.auto train.py`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from drivetrain_comm._enable import enable

__all__: list[str] = []

enable()


def _main() -> None:
    arguments = sys.argv[1:]
    first = (*arguments, "-")[0]
    if first.startswith("-") and (first != "-m" or len(arguments) == 1):
        sys.exit(
            "usage: python -m drivetrain_comm.auto [-m MODULE | SCRIPT] [ARGUMENT]..."
        )
    if first == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _main()
