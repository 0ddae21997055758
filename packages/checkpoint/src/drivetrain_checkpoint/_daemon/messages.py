"""Fields of the messages to a daemon: what each may hold, whoever sends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._fields import (
    are_counts,
    check_fields,
    is_count,
    is_kind,
    is_name,
    is_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("op", "save_id", "run", "secret", "host", "source"), is_name),
    **dict.fromkeys(("url", "under", "error"), is_kind(str)),
    **dict.fromkeys(("rank", "step", "sequence", "start", "size_bytes"), is_count),
    **dict.fromkeys(("record_bytes", "image_bytes", "num_replicas"), is_count),
    **dict.fromkeys(("drop", "at_once"), is_kind(bool)),
    **dict.fromkeys(("options", "settings", "nodes", "entry"), is_kind(dict)),
    "ranks": are_counts,
    "timeout_s": is_time,
    "bytes_per_s": lambda value: is_time(value) and (value is None or value > 0),
    "port": lambda value: is_count(value) and value < 1 << 16,
}


def check_message(message: Mapping[str, Any]) -> None:
    """Raises if a field of a message is not known, or holds what it never does.

    Raises:
        ValueError: One does, which is named.

    Example:
        >>> check_message({"op": "claim", "rank": "0"})
        Traceback (most recent call last):
        ValueError: 'rank' must not be '0'
    """
    check_fields(message, _FIELDS)
