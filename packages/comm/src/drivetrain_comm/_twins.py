"""Reads JSON in which no key stands twice."""

from __future__ import annotations

from typing import Any

__all__ = ["without_twins"]

_SHOWN = 40  # characters


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON, as `object_pairs_hook`.

    Raises:
        ValueError: A key is there twice.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            message = f"the key {key[:_SHOWN]!r} is there twice"
            raise ValueError(message)
        found[key] = value
    return found
