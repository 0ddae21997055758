"""Strict JSON: an object in which a key stands twice is an error."""

from __future__ import annotations

from typing import Any

__all__ = ["unique_keys"]

_SHOWN = 40  # characters


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON, as the `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: A key is there twice.

    Example:
        >>> import json
        >>> json.loads('{"a": 1, "a": 2}', object_pairs_hook=unique_keys)
        Traceback (most recent call last):
        ...
        ValueError: the key 'a' is there twice
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            message = f"the key {key[:_SHOWN]!r} is there twice"
            raise ValueError(message)
        found[key] = value
    return found
