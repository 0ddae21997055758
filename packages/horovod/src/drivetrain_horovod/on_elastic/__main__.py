"""Runs a script that was written for elastic Horovod, as it is.

Under `drivetrain-elastic run`:

    drivetrain-elastic run --nproc-per-node 2 -m drivetrain_horovod.on_elastic train.py
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_core.commands import CommandParser, integer, number, run_command
from drivetrain_horovod.on_elastic._names import put_names
from drivetrain_horovod.on_elastic._runtime import finish_once, options

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the script, and returns the exit status.

    Args:
        argv: The arguments; None for those of the process.
    """
    parser = CommandParser(
        prog="python -m drivetrain_horovod.on_elastic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--elastic-timeout",
        type=number(above=0),
        default=600.0,
        metavar="SECONDS",
        help="how long ranks wait for others after a change (%(default)g)",
    )
    parser.add_argument(
        "--reset-limit",
        type=integer(0),
        metavar="N",
        help="after how many changes a rank gives up; by default never",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is a module's name"
    )
    parser.add_argument("script", metavar="SCRIPT", help="the training script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="of the script"
    )
    arguments = parser.parse_args(argv)
    if code := run_command("drivetrain_horovod.on_elastic", _prepare, arguments):
        return code
    sys.argv = [arguments.script, *arguments.arguments]
    # What it raises is its own, and shown as Python shows it.
    try:
        if arguments.module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(arguments.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(arguments.script).resolve().parent)
            runpy.run_path(arguments.script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    finish_once()
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    if not arguments.module and not Path(arguments.script).exists():
        message = f"there is no script {arguments.script!r}"
        raise ProgramError(message)
    options.elastic_timeout_s = arguments.elastic_timeout
    options.reset_limit = arguments.reset_limit
    put_names()
    return 0


if __name__ == "__main__":
    sys.exit(main())
