"""Counts of what became of the saves of a checkpointer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SaveCounts:
    """What became of the saves of a checkpointer.

    Args:
        saved: How many were copied into memory.
        waited: How many of them waited for memory.
        waited_s: How long they did together, in seconds.
        skipped: How many were left out, since memory was needed for earlier ones.
        dropped: How many earlier ones were given up for newer ones.
        failed: How many storage has refused so far, as the save after them has found.
            Those that memory still holds are tried again.
    """

    saved: int = 0
    waited: int = 0
    waited_s: float = 0.0
    skipped: int = 0
    dropped: int = 0
    failed: int = 0
