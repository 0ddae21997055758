"""Open files and connections within a data set, which forked workers would share."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import numpy as np
import torch

_LEAVES = (bool, int, float, complex, str, bytes, type, type(None))
_VALUES = (np.ndarray, np.generic, torch.Tensor, torch.Generator, type(np))
_MOST_VISITED, _MOST_ITEMS = 20_000, 200


def open_handle(data: object) -> str:
    """Returns the type of an open file or connection that an object holds; "" for none.

    It is one if it has a file descriptor, or belongs to a library that says it cannot go
    to another process. Of a long list the first items are looked at.

    Example:
        >>> import os
        >>> class Records:
        ...     def __init__(self):
        ...         self.parts = {"first": open(os.devnull, "rb")}
        >>> records = Records()
        >>> open_handle([records]), open_handle([1, "two"])
        ('BufferedReader', '')
        >>> records.parts["first"].close()
    """
    waiting, seen = [data], {id(data)}
    while waiting and len(seen) < _MOST_VISITED:
        one = waiting.pop()
        if _has_descriptor(one) or _stays_here(one):
            return type(one).__name__
        for part in _parts_of(one)[:_MOST_ITEMS]:
            if not isinstance(part, (*_LEAVES, *_VALUES)) and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
    return ""


def _parts_of(one: Any) -> list[Any]:
    if isinstance(one, dict):
        return list(one.values())
    items = one if isinstance(one, (list, tuple, set, frozenset)) else ()
    within = gc.get_referents(*(getattr(one, "__closure__", None) or ()))
    own = getattr(one, "__dict__", {})
    return [*list(items)[:_MOST_ITEMS], *within, *own.values()]


def _has_descriptor(one: Any) -> bool:
    try:
        return int(one.fileno()) >= 0
    except Exception:  # noqa: BLE001
        # Closed, in memory, or no file at all.
        return False


def _stays_here(one: Any) -> bool:
    """Whether a library's object cannot be taken apart, as those around handles cannot."""
    if hasattr(one, "__dict__") or type(one).__module__ in ("builtins", "_thread"):
        return False
    with contextlib.suppress(Exception):
        try:
            one.__reduce_ex__(2)
        except TypeError:
            return True
    return False
