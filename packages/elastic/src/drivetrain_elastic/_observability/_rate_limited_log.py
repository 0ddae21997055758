"""Rate limit of log messages: a repeated one is due after longer and longer pauses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RateLimitedLog:
    """Says which messages are due again; used from one thread.

    Args:
        first_s: How long the same message is not due again at first; each time doubles it.
        longest_s: How long at most.
        clock: In seconds.

    Example:
        >>> now = iter([0, 1, 10, 20, 29, 30])
        >>> log = RateLimitedLog(first_s=10, clock=lambda: next(now))
        >>> [log.is_due("away") for _ in range(6)]
        [True, False, True, False, False, True]
    """

    def __init__(
        self,
        *,
        first_s: float = 10.0,
        longest_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._clock = clock
        # Of each message, when it is due again, and the pause after that.
        self._next: dict[str, tuple[float, float]] = {}

    def is_due(self, message: str) -> bool:
        """Returns whether a message is due now, and takes it that it is logged."""
        now_s = self._clock()
        due_s, pause_s = self._next.get(message, (now_s, self._first_s))
        if now_s < due_s:
            return False
        self._next[message] = now_s + pause_s, min(2 * pause_s, self._longest_s)
        return True

    def forget(self) -> None:
        """Makes every message due at once when it comes again, since it was over."""
        self._next.clear()
