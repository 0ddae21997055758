"""The command `drivetrain-fabric`, also `drivetrain fabric`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from drivetrain_core.commands import run_program
from drivetrain_fabric.adviser._command import populate_advise
from drivetrain_fabric.network._populate import populate_simulate
from drivetrain_fabric.topology._command import populate_topo

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
    populate_topo(commands)
    populate_advise(commands)
    populate_simulate(commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["topo", "--file", "/none.json"])
        1
    """
    return run_program(
        "drivetrain-fabric",
        populate_parser,
        argv,
        description="The network of a training cluster: topology, advice, simulation.",
    )


if __name__ == "__main__":
    sys.exit(main())
