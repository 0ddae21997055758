"""The command `drivetrain-comm`, also `drivetrain comm`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from drivetrain_comm._cli import bench, doctor, fabric, schedules, tune
from drivetrain_comm.topology._command import populate_topo
from drivetrain_core.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "populate_parser"]


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (bench, tune, doctor, fabric, schedules):
        module.populate(commands)
    populate_topo(commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["bench", "--sizes", "none"])
        1
    """
    parser = argparse.ArgumentParser(
        prog="drivetrain-comm",
        description="Communication of distributed training.",
        allow_abbrev=False,
    )
    populate_parser(parser)
    args = parser.parse_args(argv)
    return run_command("drivetrain-comm", args.run, args)


if __name__ == "__main__":
    sys.exit(main())
