"""What a cloud says about the end of a node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

from drivetrain_core import DrivetrainError

# No cloud tells so long before; such a time is wrong, or is meant for somebody else.
_MOST_S = 30 * 24 * 3600.0


class BadAnswerError(DrivetrainError):
    """A metadata endpoint answered with what no cloud says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """Something that a cloud says about this node.

    Args:
        remaining_s: After how many seconds the node may be gone.
        reason: What the cloud said, for people.
        is_certain: Whether the node will go, and is not only likely to.
        event: By what name the cloud is told that nobody needs the node any more;
            empty if it does not ask.
    """

    remaining_s: float
    reason: str
    is_certain: bool = True
    event: str = ""


class Cloud(Protocol):
    """What asks one cloud about the node that this process runs on."""

    name: str

    def is_here(self) -> bool:
        """Returns whether this node belongs to that cloud.

        Raises:
            OSError: Nobody answers.
            BadAnswerError: Whoever answers is not that cloud.
        """
        ...

    def look(self) -> Sighting | None:
        """Returns what the cloud says now; None if it says nothing.

        Raises:
            OSError: Nobody answers.
            BadAnswerError: The answer cannot be understood.
        """
        ...

    def acknowledge(self, event: str) -> None:
        """Tells the cloud that nobody needs the node any more.

        Args:
            event: From a sighting.
        """
        ...


def wall_time(text: str) -> datetime:
    """Returns a time as clouds write it: ISO 8601, or as in mail.

    Args:
        text: With a time zone, or in UTC.

    Raises:
        BadAnswerError: It is neither.

    Example:
        >>> wall_time("2026-01-05T18:02:00Z") == wall_time("Mon, 05 Jan 2026 18:02:00 GMT")
        True
    """
    text = text.strip()
    found = None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            found = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            message = f"expected a time such as 2026-01-05T18:02:00Z, got {text[:80]!r}"
            raise BadAnswerError(message) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def seconds_until(text: str, *, date: str = "") -> float:
    """Returns the seconds from now until a time that a cloud wrote, at least 0.

    Both are of the cloud's own clock where its answer has a date, so that the clock of
    this machine may be wrong.

    Args:
        text: The time.
        date: The `Date` of the answer; empty if it has none.

    Raises:
        BadAnswerError: It is no time, or further away than any cloud tells.

    Example:
        >>> seconds_until("2026-01-05T18:02:00Z", date="Mon, 05 Jan 2026 18:00:00 GMT")
        120.0
    """
    now = datetime.now(UTC)
    if date:
        now = wall_time(date)
    seconds = (wall_time(text) - now).total_seconds()
    if seconds > _MOST_S:
        message = (
            f"expected a time within 30 days of {now:%Y-%m-%d %H:%M}, got {text!r}"
        )
        raise BadAnswerError(message)
    return max(0.0, seconds)
