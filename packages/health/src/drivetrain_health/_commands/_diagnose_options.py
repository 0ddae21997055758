"""Options of the command `drivetrain-health diagnose`."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_core.commands import add_options, deferred

if TYPE_CHECKING:
    import argparse


def populate_diagnose_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    add_options(parser, files(__package__) / "diagnose_options.toml")
    parser.set_defaults(run=deferred("drivetrain_health._commands._diagnose:run"))
