"""What is to be looked at, each thing once at a time."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

_KeyT = TypeVar("_KeyT", bound="Hashable")
# How long a key waits after its first failure, and at most.
_FIRST_WAIT_S, _MOST_WAIT_S = 0.05, 60.0


class WorkQueue(Generic[_KeyT]):
    """Gives keys out, each to one worker at a time; of one event loop.

    A key that is added while somebody works on it comes again afterwards. One that fails
    waits, longer each time.

    Example:
        >>> async def story():
        ...     queue = WorkQueue()
        ...     queue.add("a")
        ...     queue.add("a")
        ...     key = await queue.get()
        ...     queue.add(key)
        ...     before = len(queue)
        ...     queue.done(key)
        ...     return key, before, len(queue)
        >>> asyncio.run(story())
        ('a', 0, 1)
    """

    def __init__(self) -> None:
        self._ready: dict[_KeyT, None] = {}
        self._busy: dict[_KeyT, float] = {}
        self._again: set[_KeyT] = set()
        self._failures: dict[_KeyT, int] = {}
        self._due: dict[_KeyT, float] = {}
        self._later: list[tuple[float, int, _KeyT]] = []
        self._num_added = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Returns how many keys can be had now."""
        return len(self._ready)

    def busy_s(self) -> float:
        """Returns for how long the longest of the keys that are out has been."""
        now_s = time.monotonic()
        return max((now_s - since_s for since_s in self._busy.values()), default=0.0)

    def add(self, key: _KeyT) -> None:
        """Lets a key be looked at."""
        if key in self._busy:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._changed.set()

    def add_after(self, key: _KeyT, wait_s: float) -> None:
        """Lets a key be looked at after a time, or before if it is added before."""
        if math.isinf(wait_s):
            return
        due_s = time.monotonic() + max(0.0, wait_s)
        if self._due.get(key, math.inf) <= due_s:
            return
        self._due[key] = due_s
        self._num_added += 1
        heapq.heappush(self._later, (due_s, self._num_added, key))
        self._changed.set()

    def retry(self, key: _KeyT, least_s: float = 0.0) -> None:
        """Lets a key that has failed be looked at after a wait.

        Args:
            key: Which one.
            least_s: How long it waits at least.
        """
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        wait_s = min(_MOST_WAIT_S, _FIRST_WAIT_S * 2 ** min(count, 30))
        self.add_after(key, max(least_s, wait_s))

    def forget(self, key: _KeyT) -> None:
        """Takes that a key has not failed."""
        self._failures.pop(key, None)

    def done(self, key: _KeyT) -> None:
        """Takes that nobody works on a key any more."""
        self._busy.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def get(self) -> _KeyT:
        """Waits for a key; `done` must be called with it."""
        while True:
            wait_s = self._move_due()
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                self._busy[key] = time.monotonic()
                return key
            self._changed.clear()
            # `wait_for` may lose that it was cancelled, before Python 3.12.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _move_due(self) -> float | None:
        """Moves what is due to what can be had; returns when the next is, if one is."""
        now_s = time.monotonic()
        while self._later and self._later[0][0] <= now_s:
            due_s, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due_s:
                del self._due[key]
                self.add(key)
        return self._later[0][0] - now_s if self._later else None
