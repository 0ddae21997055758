"""Pause of Python's garbage collector, while other ranks wait for this one."""

from __future__ import annotations

import gc


class GcPause:
    """Keeps the garbage collector from running between `begin` and `end`, if it runs at all.

    A collection takes tens of milliseconds in a large program, and the longest of those of
    all ranks is what a recovery takes longer.

    Example:
        >>> pause = GcPause()
        >>> pause.begin()
        >>> gc.isenabled()
        False
        >>> pause.end()
        >>> gc.isenabled()
        True
    """

    def __init__(self) -> None:
        self._has_paused = False

    def begin(self) -> None:
        """Pauses it, if it is not paused already."""
        if gc.isenabled():
            gc.disable()
            self._has_paused = True

    def end(self) -> None:
        """Lets it run again, unless somebody else had stopped it."""
        if self._has_paused:
            gc.enable()
            self._has_paused = False
