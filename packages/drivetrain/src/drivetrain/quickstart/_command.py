"""The command `drivetrain quickstart`."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import TYPE_CHECKING

from drivetrain_core.commands import deferred, integer, number, run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

# One in the middle is killed, with some before it and some after.
_FEWEST_STEPS = 4


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser, and what runs it.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    parser.add_argument(
        "--out",
        default="quickstart",
        metavar="FOLDER",
        help="where the results go (%(default)s)",
    )
    text = "budget of the search, instead of 180"
    parser.add_argument("--seconds", type=number(above=0), help=text)
    parser.add_argument(
        "--steps",
        type=integer(_FEWEST_STEPS),
        help="training steps of each run, instead of as many as eight minutes allow",
    )
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs="?",
        help="a training script of yours that calls accelerate, and train_step in its "
        "loop; without it, a small language model is trained",
    )
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="of the script, to its end",
    )
    parser.set_defaults(run=deferred("drivetrain.quickstart._start:run"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the main job; returns 0 when every promise was kept, else 1.

    Args:
        argv: The arguments; None for those of the process.
    """
    return run_program(
        "drivetrain-quickstart",
        populate_parser,
        argv,
        description="Shows that training is fast, and hard to kill.",
        versions=lambda: f"drivetrain {version('drivetrain')}",
    )
