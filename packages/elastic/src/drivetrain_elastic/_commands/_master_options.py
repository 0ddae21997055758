"""Options of the command `drivetrain-elastic master`."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_core.commands import add_options, deferred
from drivetrain_elastic._commands._address_options import address
from drivetrain_elastic._commands._blocked_signals import blocked_signals

if TYPE_CHECKING:
    import argparse


def populate_master_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    add_options(parser, files(__package__) / "master_options.toml", address=address)
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    # Before any library starts a thread, so that no thread takes the signal: one that
    # comes while the master starts ends it as well.
    with blocked_signals():
        return deferred("drivetrain_elastic._commands._master:serve")(arguments)
