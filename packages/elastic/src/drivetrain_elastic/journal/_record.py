"""A record, and what every journal does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from drivetrain_core import DrivetrainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_T = TypeVar("_T")
_R = TypeVar("_R")
_MOST_TEXT = 300


class JournalError(DrivetrainError, RuntimeError):
    """The journal is damaged, of another version, or claimed by another master."""


class JournalFullError(JournalError):
    """There is no room for more records; the journal is whole, and waits for room."""


class Record(NamedTuple):
    """One thing that happened.

    Attributes:
        kind: What it was.
        body: The rest, as JSON has it.
    """

    kind: str
    body: Any


class Journal(Protocol):
    """Records that survive the master. Used from one thread at a time.

    Attributes:
        incarnation: How often the journal was claimed: a number that grows with each
            master of the job, by which a command of an earlier one is known.
    """

    incarnation: int

    def records(self) -> list[Record]:
        """Returns all records, in the order in which they were appended."""

    def append(self, records: Sequence[Record]) -> None:
        """Adds records, all or none; they are durable when this returns.

        Raises:
            JournalError: Another master has claimed the journal; nothing was added.
            JournalFullError: There is no room; nothing was added.
        """

    def replace(self, records: Sequence[Record]) -> None:
        """Puts fewer records in the place of all, to the same effect; all or none.

        Raises:
            JournalError: Another master has claimed the journal; nothing has changed.
        """

    def close(self) -> None:
        """Lets go of the journal."""


def read_each(
    journal: str, read: Callable[[_T], _R], records: Iterable[_T]
) -> list[_R]:
    """Returns what a function makes of each record of a journal.

    Args:
        journal: Which one, for people.
        read: Whatever it raises, a record of another shape has made it raise.
        records: In their order.

    Raises:
        JournalError: One cannot be read; it says which.

    Example:
        >>> import json
        >>> read_each("job.db", json.loads, ["1", "{"])
        Traceback (most recent call last):
        ...
        drivetrain_elastic.journal._record.JournalError: the journal job.db is damaged:
        record 2: JSONDecodeError: Expecting property name enclosed in double quotes:
        line 1 column 2 (char 1)
    """
    found = []
    for number, record in enumerate(records, 1):
        try:
            found.append(read(record))
        except Exception as error:
            raise damaged(journal, f"record {number}", error) from error
    return found


def damaged(journal: str, where: str, error: Exception) -> JournalError:
    """Returns the error of a journal that holds something else than was written there."""
    text = f"{type(error).__name__}: {error}"[:_MOST_TEXT]
    return JournalError(f"the journal {journal} is damaged: {where}: {text}")
