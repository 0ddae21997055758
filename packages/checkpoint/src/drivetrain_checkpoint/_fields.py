"""Kinds of fields in what comes from outside: messages, manifests, tables of nodes."""

from __future__ import annotations

import math
import reprlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MISSHAPEN = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""What is raised where something from outside is not what it should be."""

_MOST_NAME = 256
_MOST_COUNT = 1 << 62
_MOST_DIMS = 64


def is_count(value: Any) -> bool:
    """Whether something is a whole number that a field of 8 bytes takes.

    Example:
        >>> is_count(0), is_count(True), is_count(-1), is_count(1 << 64)
        (True, False, False, False)
    """
    return type(value) is int and 0 <= value < _MOST_COUNT


def are_counts(value: Any) -> bool:
    """Whether something is a list of such numbers."""
    return isinstance(value, list) and all(map(is_count, value))


def is_shape(value: Any) -> bool:
    """Whether something is the shape of a tensor that memory could hold.

    Example:
        >>> is_shape([2, 0]), is_shape([]), is_shape([1 << 40, 1 << 40])
        (True, True, False)
    """
    is_list = are_counts(value) and len(value) <= _MOST_DIMS
    return is_list and is_count(math.prod(filter(None, value)))


def is_name(value: Any) -> bool:
    """Whether something is a short text."""
    return isinstance(value, str) and len(value) <= _MOST_NAME


def is_time(value: Any) -> bool:
    """Whether something is a time in seconds that can be waited for, or None for ever."""
    if value is None:
        return True
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value <= threading.TIMEOUT_MAX  # which no NaN is


def is_kind(kind: type) -> Callable[[Any], bool]:
    """Returns what tells whether something is of a type."""
    return lambda value: isinstance(value, kind)


def check_fields(
    fields: Mapping[str, Any], kinds: Mapping[str, Callable[[Any], bool]]
) -> None:
    """Raises if a field is not known, or holds what it never does.

    Args:
        fields: The fields.
        kinds: What each may be.

    Raises:
        ValueError: One is not, and is named.

    Example:
        >>> check_fields({"rank": "0"}, {"rank": is_count})
        Traceback (most recent call last):
        ValueError: 'rank' must not be '0'
    """
    for name, value in fields.items():
        if not kinds.get(name, lambda _: False)(value):
            text = f"{name[:40]!r} must not be {reprlib.repr(value)}"
            raise ValueError(text)
