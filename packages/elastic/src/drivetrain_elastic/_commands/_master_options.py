"""Options of the command `drivetrain-elastic master`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.commands import deferred
from drivetrain_elastic._commands._blocked_signals import blocked_signals
from drivetrain_elastic._commands._option_table import add_options

if TYPE_CHECKING:
    import argparse


def populate_master_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    add_options(parser, "master_options.toml")
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    # Before any library starts a thread, so that no thread takes the signal: one that
    # comes while the master starts ends it as well.
    with blocked_signals():
        return deferred("drivetrain_elastic._commands._master:serve")(arguments)
