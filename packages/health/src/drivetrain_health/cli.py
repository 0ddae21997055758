"""The command `drivetrain-health`, also `drivetrain health`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from drivetrain_core.commands import run_program
from drivetrain_health._commands._diagnose_options import populate_diagnose_parser
from drivetrain_health.faults import cli as faults_cli

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
    for name, help_text, populate in (
        ("diagnose", "say why something has failed", populate_diagnose_parser),
        (
            "faults",
            "make faults, to see what survives them",
            faults_cli.populate_parser,
        ),
    ):
        populate(commands.add_parser(name, help=help_text, allow_abbrev=False))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["diagnose"])
        2
    """
    return run_program(
        "drivetrain-health",
        populate_parser,
        argv,
        description="The health of training nodes: diagnosis and injected faults.",
    )


if __name__ == "__main__":
    sys.exit(main())
