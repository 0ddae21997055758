"""Commands that moved to another package: their old names still work, and warn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from drivetrain_core._command_line.parser import CommandParser, ForwardParser
from drivetrain_core._errors import MissingLibraryError
from drivetrain_core.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["forward_command", "run_moved"]


def forward_command(commands: Any, word: str, new: str) -> None:
    """Adds a command that warns, and runs another one with the same arguments.

    Args:
        commands: The sub-commands of a parser.
        word: The old name.
        new: The words of the new command after `drivetrain`.

    Example:
        >>> parser = CommandParser(prog="drivetrain-comm")
        >>> forward_command(parser.add_subparsers(), "look", "list")
        >>> parser.parse_args(["look", "--json"]).rest
        ['--json']
    """
    prog = f"{commands._prog_prefix} {word}"
    commands.choices[word] = ForwardParser(
        prog=prog, forward=lambda rest: run_moved(prog, new, rest)
    )


def run_moved(old: str, new: str, arguments: Sequence[str]) -> int:
    """Warns on standard error, runs a command of `drivetrain`, and returns its status.

    Args:
        old: What was typed, which usage and errors name.
        new: The words of the new command after `drivetrain`.
        arguments: Its arguments.

    Raises:
        MissingLibraryError: The package that has the command is not installed.
    """
    from drivetrain_core.cli import populate_parser  # it knows those of all packages

    parser = CommandParser(prog="drivetrain")
    populate_parser(parser)
    command = parser.command(new.split())
    if command is None:
        package = f"drivetrain-{new.split()[0]}"
        message = f"{old} is now drivetrain {new}: pip install {package}"
        raise MissingLibraryError(message)
    sys.stderr.write(f"{old} is now drivetrain {new}; the old name goes away\n")
    command.prog = old
    parsed = command.parse_args(list(arguments))
    return run_command(old.split()[0], parsed.run, parsed)
