"""The command `drivetrain quickstart`."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_core.commands import add_options, deferred, run_program

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser, and what runs it.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    add_options(parser, files(__package__) / "options.toml")
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
