"""The command `drivetrain-cloud`, also `drivetrain cloud`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from drivetrain_cloud._commands.cost_options import populate_cost_parser
from drivetrain_cloud._commands.goodput_options import populate_goodput_parser
from drivetrain_cloud._commands.operator_options import populate_operator_parser
from drivetrain_cloud._commands.simulate_spot_options import (
    populate_simulate_spot_parser,
)
from drivetrain_cloud._commands.supervise_options import populate_supervise_parser
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
    for name, help_text, populate in (
        ("operator", "look after the jobs of a cluster", populate_operator_parser),
        ("supervise", "train on nodes that may go", populate_supervise_parser),
        ("cost", "say what a run has cost", populate_cost_parser),
        ("goodput", "simulate what failures cost", populate_goodput_parser),
        (
            "simulate-spot",
            "simulate what strategies on spot nodes cost",
            populate_simulate_spot_parser,
        ),
    ):
        populate(commands.add_parser(name, help=help_text, allow_abbrev=False))


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
