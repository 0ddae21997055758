"""Options of `drivetrain search` and of `drivetrain diff`."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files

from drivetrain_core import Budget, ProgramError
from drivetrain_core.commands import add_options, deferred


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `drivetrain search`, and sets what it runs."""
    file = files(__package__) / "search_options.toml"
    add_options(parser, file, budget=_budget, png=_png)
    parser.set_defaults(run=deferred("drivetrain_search.command:run"))


def populate_diff_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `drivetrain diff`, and sets what it runs."""
    add_options(parser, files(__package__) / "diff_options.toml")
    parser.set_defaults(run=deferred("drivetrain_search.plan_diff:run"))


def _budget(text: str) -> str:
    """Returns a budget as `accelerate` takes it; a number is one of seconds."""
    budget = f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text
    try:
        Budget.of(budget)
    except ProgramError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return budget


def _png(path: str) -> str:
    if not path.endswith(".png"):
        message = f"a picture's path must end in .png, got {path!r}"
        raise argparse.ArgumentTypeError(message)
    return path
