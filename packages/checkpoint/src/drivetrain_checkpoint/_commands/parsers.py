"""Parsers of the commands; what a command carries out is imported when it runs."""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from typing import Any

from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._storage.open import resolve
from drivetrain_core.commands import add_commands


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds all commands.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    add_commands(
        parser, files(__package__) / "commands.toml", place=_place, option=_option
    )


def _place(text: str) -> str:
    """Returns a path or an URL as it was typed, if it can be one."""
    try:
        resolve(text)
    except (StorageError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _option(text: str) -> tuple[str, Any]:
    key, is_there, value = text.partition("=")
    if not key or not is_there:
        message = f"KEY=VALUE is expected, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
