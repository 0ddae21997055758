"""Times as objects carry them."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Returns the time."""
    return datetime.now(UTC)


def format_time(time: datetime | None = None) -> str:
    """Returns a time as RFC 3339 has it, in whole seconds; now by default.

    Example:
        >>> format_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
        '2026-01-02T03:04:05Z'
    """
    return (time or now()).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
