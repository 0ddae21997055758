"""Times as objects carry them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["format_time", "now", "read_time"]


def now() -> datetime:
    """Returns the time."""
    return datetime.now(UTC)


def format_time(time: datetime) -> str:
    """Returns a time as RFC 3339 has it, in whole seconds.

    Example:
        >>> format_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
        '2026-01-02T03:04:05Z'
    """
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(text: str) -> datetime:
    """Returns the time that a field says."""
    return datetime.fromisoformat(text)
