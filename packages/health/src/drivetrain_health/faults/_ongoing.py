"""A fault that lasts until somebody ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class Ongoing:
    """A fault that has begun; a context manager that heals it when its block is left.

    Args:
        undo: What ends the fault; it is called once.

    Example:
        >>> with Ongoing(lambda: print("healed")) as fault:
        ...     fault.heal()
        healed
    """

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo: Callable[[], None] | None = undo

    def heal(self) -> None:
        """Ends the fault; does nothing if it has ended."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
