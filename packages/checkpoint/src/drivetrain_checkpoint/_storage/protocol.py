"""Storage protocol: folders of saves, written durably and committed at once.

Each save has a folder of its own, named after its step and id. A storage knows nothing
of what lies in a folder but for the root manifest, whose appearance commits the save.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

from drivetrain_checkpoint._errors import StorageError
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_checkpoint._native import Progress

_FOLDER = re.compile(r"step-(\d{10,})-([0-9a-f]{16})")


class SaveName(NamedTuple):
    """What the name of a folder says.

    Args:
        step: The step.
        save_id: What the files of one save have in common.
    """

    step: int
    save_id: str


class Storage(Protocol):
    """Keeps the folders of saves. Its methods may be called from several threads.

    Each raises `StorageError` where the storage refuses or fails, and
    `FileNotFoundError` for a file that is not there.
    """

    url: str
    """What a user calls it."""

    def write(
        self,
        name: str,
        file: str,
        memory: memoryview,
        num_threads: int,
        progress: Progress,
    ) -> list[int]:
        """Writes memory to a new file, durably, and returns its blocks' checksums."""
        ...

    def write_small(self, name: str, file: str, content: bytes) -> None:
        """Makes a file appear whole; it is durable when `commit` has made another."""
        ...

    def commit(self, name: str, file: str, content: bytes) -> None:
        """Makes a file appear whole, or not at all, after all that was written."""
        ...

    def names(self) -> list[str]:
        """Returns the folders that are there, committed or not."""
        ...

    def unfinished(self) -> list[str]:
        """Returns the folders with uploads that were begun and not ended.

        They are not seen otherwise, and are paid for.
        """
        return []

    def files(self, name: str) -> dict[str, int]:
        """Returns the files of a folder with their sizes; none if it is not there."""
        ...

    def exists(self, name: str, file: str) -> bool:
        """Whether a file is there."""
        ...

    def ensure_durable(self, name: str, file: str) -> bool:
        """Makes durable what another process may have committed.

        It is asked by a daemon that has taken the place of another, and by handles.

        Returns:
            Whether there is such a file; it is durable then.
        """
        ...

    def read(self, name: str, file: str) -> bytes:
        """Returns a small file."""
        ...

    def read_into(self, name: str, file: str, memory: memoryview, at: int) -> None:
        """Fills memory from part of a file."""
        ...

    def changed_s(self, name: str) -> float:
        """Returns when something in a folder was changed last, in seconds since 1970.

        It is infinite where the storage does not say.
        """
        ...

    def remove(self, name: str, last: str) -> None:
        """Deletes a folder; that file, which commits it, goes first and durably."""
        ...


def folder_name(step: int, save_id: str) -> str:
    """Returns the name of a save's folder.

    Example:
        >>> folder_name(7, "0123456789abcdef")
        'step-0000000007-0123456789abcdef'
    """
    return f"step-{step:010d}-{save_id}"


# A commit looks at all folders that are there.
@functools.lru_cache(1 << 14)
def parse_name(name: str) -> SaveName | None:
    """Returns what a folder's name says, or None if it is that of no save."""
    match = _FOLDER.fullmatch(name)
    return SaveName(int(match[1]), match[2]) if match else None


@contextlib.contextmanager
def as_storage_error(
    action: str,
    what: object,
    *,
    may_miss: bool = False,
    errors: type[Exception] | tuple[type[Exception], ...] = OSError,
) -> Iterator[None]:
    """Raises errors of the operating system as `StorageError`, with what was done.

    Args:
        action: What is done.
        what: What it is done to.
        may_miss: Whether a file that is not there stays a `FileNotFoundError`.
        errors: The errors that are raised so.
    """
    try:
        yield
    except CheckpointError:
        raise
    except errors as error:
        if may_miss and isinstance(error, FileNotFoundError):
            raise
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        message = f"cannot {action} {what}: {said}"
        found = StorageError(message)
        found.errno = getattr(error, "errno", None)
        raise found from error
