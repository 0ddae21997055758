"""The commands: what each is for, and what carries it out."""

from __future__ import annotations

import argparse
from importlib.resources import files

from drivetrain_core.commands import add_options, deferred, number

COMMANDS = {
    "operator": ("look after the jobs of a cluster", "operator_objects:run"),
    "supervise": ("train on nodes that may go", "supervise:run"),
    "cost": ("say what a run has cost", "cost:run"),
    "goodput": ("simulate what failures cost", "goodput:run"),
    "simulate-spot": (
        "simulate what strategies on spot nodes cost",
        "simulate_spot:run",
    ),
}
"""What they are for, and the functions, by name."""


def populate_command(parser: argparse.ArgumentParser, name: str) -> None:
    """Adds the options of a command to its parser, and sets `run`.

    Args:
        parser: Of the command.
        name: Of the command.
    """
    _, run = COMMANDS[name]
    options = f"{name.replace('-', '_')}_options.toml"
    add_options(parser, files(__package__) / options, cloud=_cloud)
    parser.set_defaults(run=deferred(f"{__package__}.{run}"))


def _cloud(text: str) -> tuple[str, float]:
    """Returns a name and seconds.

    Example:
        >>> _cloud("aws=120")
        ('aws', 120.0)
    """
    # What reads the answers of clouds is of no use where none is named.
    from drivetrain_cloud.notices.known_clouds import CLOUDS

    name, equals, seconds = text.partition("=")
    if not equals or name not in CLOUDS:
        message = (
            f"takes one of {', '.join(CLOUDS)} and seconds, as in aws=120, got {text!r}"
        )
        raise argparse.ArgumentTypeError(message)
    return name, number(above=0)(seconds)
