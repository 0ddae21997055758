"""Unauthenticated connections to a port of ours, of strangers as far as is known."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

_MOST, _PROOF_S, _LOOK_S = 1024, 10.0, 0.1


class UnauthenticatedConnections:
    """Bounds connections, in number and in time, until they are trusted; of one event loop.

    The oldest makes room for a new one.

    Args:
        most: How many there may be; fewer where few files may be open.
        within_s: How long each of them has.

    Example:
        >>> class Connection:
        ...     def __init__(self, name):
        ...         self.name = name
        ...
        ...     def abort(self):
        ...         print(self.name, "is closed")
        >>> async def example():
        ...     strangers = UnauthenticatedConnections(most=1)
        ...     first, second, third = map(Connection, ("first", "second", "third"))
        ...     strangers.add(first)
        ...     strangers.add(second)
        ...     strangers.trust(second)
        ...     strangers.add(third)
        >>> asyncio.run(example())
        first is closed
    """

    def __init__(self, most: int = _MOST, within_s: float = _PROOF_S) -> None:
        # Those who are trusted need files as well.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(most, files // 4)
        self._within_s = within_s
        self._since_s: dict[Any, float] = {}
        self._loop = asyncio.get_running_loop()
        self._look()

    def _look(self) -> None:
        """Drops those whose time is up, again and again."""
        end_s = time.monotonic() - self._within_s
        for transport, since_s in list(self._since_s.items()):
            if since_s >= end_s:
                break
            self.drop(transport)
        self._loop.call_later(min(_LOOK_S, self._within_s), self._look)

    def add(self, transport: Any) -> None:
        """Takes in a connection, which is aborted if it is not trusted in time."""
        if len(self._since_s) >= self._most:
            self.drop(next(iter(self._since_s)))
        self._since_s[transport] = time.monotonic()

    def trust(self, transport: Any) -> bool:
        """Forgets a connection, which stays; returns whether it was a stranger's."""
        return self._since_s.pop(transport, None) is not None

    def drop(self, transport: Any) -> None:
        """Ends a connection, if it is a stranger's."""
        if self.trust(transport):
            transport.abort()

    def close(self) -> None:
        """Ends all connections of strangers."""
        for transport in list(self._since_s):
            self.drop(transport)
