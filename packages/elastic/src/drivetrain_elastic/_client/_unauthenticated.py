"""Unauthenticated connections to a port of ours, of strangers as far as is known."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from typing import Any

_MOST_SILENT, _MOST_WAITING, _MOST_INSIDE = 1024, 1024, 128
_PROOF_S, _LEAST_S, _LOOK_S = 10.0, 0.5, 0.1
# A client with another token may ask several things, and reads why they are refused.
_MOST_REFUSALS = 32


class UnauthenticatedConnections:
    """Bounds connections, in number and in time, until they are trusted; of one event loop.

    Of those that say nothing the oldest makes room for a new one. Those that have spoken
    come in one after the other, so that all nodes of a job may come at once; where some
    have to wait, those who are in and show nothing go sooner.

    Args:
        most: How many may be silent; fewer where few files may be open.
        within_s: How long each of them has.

    Example:
        >>> class Connection:
        ...     def abort(self):
        ...         print("is closed")
        >>> async def example():
        ...     strangers = UnauthenticatedConnections(most=1)
        ...     strangers.add("first", Connection())
        ...     strangers.add("second", Connection())
        ...     strangers.trust("second")
        ...     strangers.add("third", Connection())
        >>> asyncio.run(example())
        is closed
    """

    def __init__(self, most: int = _MOST_SILENT, within_s: float = _PROOF_S) -> None:
        # One that is in has three files, and those who are trusted need some.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(most, files // 4)
        self._room = asyncio.Semaphore(min(_MOST_INSIDE, files // 16))
        self._within_s = within_s
        self._num_waiting = 0
        self._silent: dict[str, tuple[Any, float]] = {}
        self._inside: dict[str, tuple[Any, float]] = {}
        self._num_refused: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()
        self._look()

    def _look(self) -> None:
        """Drops those whose time is up, again and again."""
        now_s = time.monotonic()
        inside_s = _LEAST_S if self._num_waiting else self._within_s
        for found, most_s in ((self._silent, self._within_s), (self._inside, inside_s)):
            for name, (_, since_s) in list(found.items()):
                if since_s < now_s - most_s:
                    self.drop(name)
        self._loop.call_later(min(_LOOK_S, self._within_s), self._look)

    def add(self, name: str, transport: Any) -> None:
        """Takes in a connection.

        Args:
            name: That no other one has.
            transport: It is aborted if it is not trusted in time.
        """
        if len(self._silent) >= self._most:
            self.drop(next(iter(self._silent)))
        self._silent[name] = transport, time.monotonic()

    async def enter(self, name: str) -> bool:
        """Waits until there is room for one that has spoken; returns whether it may come in."""
        transport, _ = self._silent.pop(name, (None, 0.0))
        if transport is None or self._num_waiting >= _MOST_WAITING:
            return False
        self._num_waiting += 1
        try:
            await self._room.acquire()
        finally:
            self._num_waiting -= 1
        self._inside[name] = transport, time.monotonic()
        return True

    def trust(self, name: str) -> Any:
        """Forgets a connection, which stays, and returns it; None if it is no stranger's."""
        self._num_refused.pop(name, None)
        if name in self._inside:
            self._room.release()
        found = self._inside.pop(name, None) or self._silent.pop(name, None)
        return found and found[0]

    def drop(self, name: str) -> None:
        """Ends a connection, if it is a stranger's."""
        if (transport := self.trust(name)) is not None:
            transport.abort()

    def refuse(self, name: str) -> None:
        """Notes that a stranger was refused something; who asks on and on is sent away."""
        if name in self._inside:
            self._num_refused[name] += 1
            if self._num_refused[name] > _MOST_REFUSALS:
                self.drop(name)

    def close(self) -> None:
        """Ends all connections of strangers."""
        for name in [*self._silent, *self._inside]:
            self.drop(name)
