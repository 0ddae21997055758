"""Options of the command `drivetrain-cloud cost`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.commands import deferred, number

if TYPE_CHECKING:
    import argparse


def populate_cost_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.add_argument(
        "usage",
        metavar="FILE",
        help="what `supervise --folder DIR` has recorded: DIR/usage.json",
    )
    parser.add_argument(
        "--prices",
        action="append",
        metavar="FILE",
        help="CSV or a cloud's JSON, once or more; by default an example",
    )
    parser.add_argument(
        "--offer",
        metavar="NAME",
        help="what the prices call a node, for all of them; by default what the record does",
    )
    parser.add_argument(
        "--reference-speed",
        type=number(above=0),
        metavar="N",
        help="samples a second with all nodes and nothing that happens; by default as "
        "recorded",
    )
    parser.add_argument("--json", action="store_true", help="JSON, for programs")
    parser.set_defaults(run=deferred("drivetrain_cloud._commands.cost:run"))
