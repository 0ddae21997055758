"""The command `drivetrain-cloud`, also `drivetrain cloud`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from drivetrain_cloud._commands.commands import COMMANDS, populate_command
from drivetrain_core.commands import run_program

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, (help_text, _) in COMMANDS.items():
        one = commands.add_parser(name, help=help_text, allow_abbrev=False)
        populate_command(one, name)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["cost", "/none.json"])
        1
    """
    return run_program(
        "drivetrain-cloud",
        populate_parser,
        argv,
        description="Training on clouds: Kubernetes, spot capacity, cost.",
    )


if __name__ == "__main__":
    sys.exit(main())
