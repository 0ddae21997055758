"""A record, and what every journal does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from drivetrain_core import DrivetrainError

if TYPE_CHECKING:
    from collections.abc import Sequence


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
