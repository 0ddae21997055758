"""What the commands share: arguments, storages, tables and progress."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._storage.open import open_storage, resolve
from drivetrain_core.commands import integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_checkpoint._storage.protocol import Storage

    Run = Callable[[argparse.Namespace], int]
    Tell = Callable[[int, int], object]

__all__ = [
    "add_checkpoint",
    "add_command",
    "add_step",
    "existing",
    "place",
    "progress",
    "say",
    "say_json",
    "say_table",
    "storage_at",
]


def add_command(
    commands: Any, name: str, text: str, run: Run
) -> argparse.ArgumentParser:
    """Adds a command with the options that all have.

    Args:
        commands: The sub-parsers.
        name: What it is called.
        text: What it does.
        run: Does it, and returns the exit status: 0 if all is well, 1 if not.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, allow_abbrev=False
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, for other programs"
    )
    parser.add_argument(
        "--storage-option",
        dest="options",
        metavar="KEY=VALUE",
        action="append",
        type=_option,
        default=[],
        help="what fsspec is to know of URLs; the value is JSON, or else text",
    )
    parser.set_defaults(run=lambda args: _run(run, args))
    return parser


def add_checkpoint(parser: argparse.ArgumentParser, name: str = "checkpoint") -> None:
    """Adds the arguments that say which committed checkpoint is meant.

    Args:
        parser: The command.
        name: What its argument is called.
    """
    text = "its folder, or the one it was saved to"
    parser.add_argument(name, type=place, help=text)
    add_step(parser, "--step", "which one of a folder; the newest")


def add_step(parser: argparse.ArgumentParser, option: str, text: str) -> None:
    """Adds an option that takes a step.

    Args:
        parser: The command.
        option: What it is called.
        text: Its help.
    """
    parser.add_argument(option, type=integer(0), help=text)


def place(text: str) -> str:
    """Returns a path or an URL as it was typed, if it can be one."""
    try:
        resolve(text)
    except (StorageError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def existing(text: str) -> str:
    """Returns a folder or an URL as `resolve` does.

    Raises:
        StorageError: There is no such folder.
    """
    found = resolve(text)
    if "://" not in found and not Path(found).is_dir():
        is_there = Path(found).exists()
        message = f"{found} is no folder" if is_there else f"there is no folder {found}"
        raise StorageError(message)
    return found


def storage_at(place: str, args: argparse.Namespace) -> Storage:
    """Returns the storage of a folder or URL that a command was given."""
    return open_storage(resolve(place), args.options)


def say(text: str = "") -> None:
    """Prints a line."""
    sys.stdout.write(f"{text}\n")


def say_json(value: object) -> None:
    """Prints a value as one line of JSON."""
    say(json.dumps(value))


def say_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints rows under each other."""
    cells = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True))
        say(line.rstrip())


@contextlib.contextmanager
def progress(
    args: argparse.Namespace, text: str, *, is_bytes: bool = True
) -> Iterator[Tell]:
    """Gives what shows how far something is, on the standard error output.

    It is a bar on a terminal, if rich is installed, and else nothing for programs, and
    a line for each tenth for people.
    """
    if args.json:
        yield lambda _done, _total: None
        return
    if not sys.stderr.isatty():
        yield _plain(text)
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        yield _plain(text)
        return
    count = DownloadColumn() if is_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count)
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain(text: str) -> Tell:
    shown = 0

    def tell(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(1, total)
        if tenth > shown:
            shown = tenth
            sys.stderr.write(f"{text}: {10 * tenth} %\n")

    return tell


def _run(run: Run, args: argparse.Namespace) -> int:
    args.options = dict(args.options)
    return run(args)


def _option(text: str) -> tuple[str, Any]:
    key, is_there, value = text.partition("=")
    if not key or not is_there:
        message = f"KEY=VALUE is expected, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
