"""What the commands share: storages, tables and progress."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._storage.open import open_storage, resolve
from drivetrain_checkpoint._storage.open_checkpoint import open_checkpoint
from drivetrain_core.tables import aligned

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_checkpoint._storage.open_checkpoint import CommittedCheckpoint
    from drivetrain_checkpoint._storage.protocol import Storage

    Tell = Callable[[int, int], object]


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
    return open_storage(resolve(place), dict(args.options))


def open_existing(place: str, args: argparse.Namespace) -> CommittedCheckpoint:
    """Returns the committed checkpoint that a command was given."""
    return open_checkpoint(existing(place), args.step, dict(args.options))


def say(text: str = "") -> None:
    """Prints a line."""
    sys.stdout.write(f"{text}\n")


def say_json(value: object) -> None:
    """Prints a value as one line of JSON."""
    say(json.dumps(value))


def say_written(args: argparse.Namespace, place: str) -> None:
    """Prints where something was written."""
    if args.json:
        say_json({"written": place})
    else:
        say(place)


def say_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints rows under each other."""
    cells = [header, *([str(cell) for cell in row] for row in rows)]
    say("\n".join(aligned(cells)))


@contextlib.contextmanager
def progress(
    args: argparse.Namespace, text: str, *, is_bytes: bool = True
) -> Iterator[Tell]:
    """Gives what shows how far something is, on the standard error output.

    It is a bar on a terminal, and else nothing for programs, and a line for each tenth
    for people.
    """
    if args.json:
        yield lambda _done, _total: None
        return
    if not sys.stderr.isatty():
        yield _plain(text)
        return
    # Only a terminal needs it.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

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
