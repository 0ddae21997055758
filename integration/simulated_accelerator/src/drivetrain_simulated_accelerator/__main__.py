"""Builds the native library, or tells about it.

`python -m drivetrain_simulated_accelerator build|info`
"""

from __future__ import annotations

import sys
import time

from drivetrain_core import DrivetrainError
from drivetrain_core.commands import CommandParser
from drivetrain_simulated_accelerator._build import build, cache_folder, find_library
from drivetrain_simulated_accelerator._toolchain import torch_version


def main(arguments: list[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    parser = CommandParser(
        prog="python -m drivetrain_simulated_accelerator",
        description="The native library of the simulated accelerator.",
    )
    parser.add_argument(
        "action",
        choices=["build", "info"],
        help="build the library if it is not there, or say where it is",
    )
    options = parser.parse_args(arguments)
    try:
        if options.action == "build":
            begin = time.monotonic()
            library = build(verbose=True)
            taken_s = time.monotonic() - begin
            sys.stdout.write(f"{library}\nready after {taken_s:.1f} s\n")
        else:
            found = find_library()
            sys.stdout.write(f"torch    {torch_version()}\n")
            sys.stdout.write(f"cache    {cache_folder()}\n")
            sys.stdout.write(f"library  {found or 'not built'}\n")
    except (DrivetrainError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
