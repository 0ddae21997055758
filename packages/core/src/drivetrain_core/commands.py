"""What the command lines of all packages share: how they are parsed, and how they end."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from drivetrain_core._command_line.option_table import (
    add_commands,
    add_options,
    deferred,
)
from drivetrain_core._command_line.option_values import integer, number
from drivetrain_core._command_line.parser import CommandParser, ShowVersion
from drivetrain_core._command_line.reach import Reach, reach_of
from drivetrain_core._errors import (
    DrivetrainError,
    PlanError,
    UsageError,
    reason_of,
    visible,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "CommandParser",
    "Reach",
    "UsageError",
    "add_commands",
    "add_options",
    "add_version",
    "as_wrong_use",
    "busy",
    "deferred",
    "integer",
    "number",
    "reach_of",
    "reason_of",
    "run_command",
    "run_program",
]

_WORD = re.compile(r"\b[a-z]+(?:_[a-z0-9]+)*\b")


def run_program(
    program: str,
    populate: Callable[[argparse.ArgumentParser], None],
    argv: Sequence[str] | None = None,
    *,
    description: str,
    versions: Callable[[], str] | None = None,
) -> int:
    """Parses a command line, runs what it names, and returns the exit status.

    Args:
        program: The name of the command, which is that of its distribution too.
        populate: Adds the commands to a parser; each sets `run`, a function from the
            parsed arguments to the exit status.
        argv: The arguments; None for those of the process.
        description: What the program is for, in its help.
        versions: Returns what `--version` prints; by default that of the distribution.

    Raises:
        SystemExit: The arguments are wrong, which is the status 2, or ask for the help
            or the version.

    Example:
        >>> def populate(parser):
        ...     parser.set_defaults(run=lambda _: 0)
        >>> run_program("program", populate, [], description="Does nothing.")
        0
    """
    parser = CommandParser(prog=program, description=description)
    add_version(parser, program, versions)
    populate(parser)
    arguments = parser.parse_args(argv)
    return run_command(program, arguments.run, arguments)


def add_version(
    parser: argparse.ArgumentParser,
    distribution: str,
    versions: Callable[[], str] | None = None,
) -> None:
    """Adds the option `--version`.

    Args:
        parser: Of a command.
        distribution: Whose version it prints.
        versions: Returns what it prints instead.
    """

    def own_version() -> str:
        return f"{distribution} {version(distribution)}"

    parser.add_argument(
        "--version", action=ShowVersion, versions=versions or own_version
    )


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Shows on a terminal that a command works, while a block of it runs.

    Args:
        text: What it does.

    Example:
        >>> with busy("looking for devices"):
        ...     pass
    """
    if not sys.stderr.isatty():
        yield
        return
    # It is a tenth of what quick commands take.
    from rich.console import Console

    with Console(stderr=True).status(f"{text} ..."):
        yield


def run_command(
    program: str,
    run: Callable[[argparse.Namespace], int],
    arguments: argparse.Namespace,
) -> int:
    """Runs a command and returns its exit status.

    Wrong use is one line on standard error and the status 2, an expected failure one line
    and the status 1. An interrupt is the status 130; and if whoever reads the output goes
    away, the command ends with the status 1 and says nothing.

    Args:
        program: The name that its line on standard error starts with.
        run: Does what the command is for, and returns the exit status.
        arguments: What it is given.

    Example:
        >>> from argparse import Namespace
        >>> run_command("program", lambda _: 0, Namespace())
        0
    """
    # Where a daemon was started without them, each gets the lowest number that is free, which
    # is its own: no file is taken for the output then, here and in processes that are started.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: PTH123, SIM115
            os.set_inheritable(getattr(sys, name).fileno(), True)
    try:
        status = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # What Python still holds would raise once more when it ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return 1
    except UsageError as error:
        parser = getattr(arguments, "parser", None) or CommandParser(prog=program)
        return parser.refuse(str(error))
    except (DrivetrainError, OSError) as error:
        sys.stderr.write(f"{program}: {visible(_said(error))}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: interrupted\n")
        return 130
    return status


@contextmanager
def as_wrong_use(
    arguments: argparse.Namespace, option: str = "", **renamed: str
) -> Iterator[None]:
    """Lets what a block refuses be wrong use of the command, told in its options.

    Where a message names a parameter, such as `num_steps`, it names the option that was
    typed instead.

    Args:
        arguments: Of the command.
        option: What a message that does not name it begins with.
        renamed: The options of parameters that have another name than theirs.

    Raises:
        UsageError: The block raised a `DrivetrainError`, but not for a library or a file.

    Example:
        >>> parser = CommandParser(prog="program")
        >>> _ = parser.add_argument("--most-steps", type=int)
        >>> arguments = parser.parse_args(["--most-steps", "0"])
        >>> with as_wrong_use(arguments):
        ...     raise DrivetrainError("most_steps must be at least 1, got 0")
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.UsageError: --most-steps must be at least 1, got 0
    """
    try:
        yield
    except DrivetrainError as error:
        # A library or a file that is missing is no fault of the call.
        if isinstance(error, (UsageError, ImportError, OSError)):
            raise
        parser = getattr(arguments, "parser", None)
        names = (parser.option_names() if parser else {}) | renamed
        message = _in_options(_without_code(error), names)
        if option not in message:
            message = f"{option}: {message}"
        raise UsageError(message) from error


def _in_options(message: str, names: dict[str, str]) -> str:
    """Returns a message that names options where it named parameters."""

    def renamed(word: re.Match[str]) -> str:
        # A parameter of one word is told from prose by its place.
        is_name = "_" in word[0] or word.start() == 0
        return names.get(word[0], word[0]) if is_name else word[0]

    return _WORD.sub(renamed, message)


def _without_code(error: DrivetrainError) -> str:
    if not isinstance(error, PlanError):
        return str(error)
    return f"{error.because}. Fix: {error.fix}" if error.fix else error.because


def _said(error: Exception) -> str:
    """Returns a message; that of a file names the file once, and first."""
    name = error.filename if isinstance(error, OSError) and error.strerror else None
    if not isinstance(name, (str, bytes, os.PathLike)):
        return str(error)
    return f"{os.fsdecode(name)}: {reason_of(error)}"
