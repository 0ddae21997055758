"""Connections to a port of ours that have not shown yet whose they are."""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import dataclass
from typing import Any

_MOST = 512
_PROOF_S = 10.0
_LOOK_S = 1.0
# A client with another token may ask several things, and reads why they are refused.
_MOST_REFUSALS, _GOODBYE_S = 100, 0.5


@dataclass(slots=True)
class _Stranger:
    transport: Any
    since_s: float
    num_refused: int = 0


class Strangers:
    """Bounds connections, in number and in time, until they are trusted; of one event loop.

    When there are too many, the oldest makes room for a new one: who connects and says
    nothing keeps nobody out.

    Args:
        most: How many there may be; fewer where few files may be open.
        within_s: How long each of them has.

    Example:
        >>> class Connection:
        ...     def abort(self):
        ...         print("is closed")
        >>> async def example():
        ...     strangers = Strangers(most=1)
        ...     strangers.add("first", Connection())
        ...     strangers.add("second", Connection())
        ...     strangers.trust("second")
        ...     strangers.add("third", Connection())
        >>> asyncio.run(example())
        is closed
    """

    def __init__(self, most: int = _MOST, within_s: float = _PROOF_S) -> None:
        # Each has up to three files, and those who are trusted need some.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(1, min(most, files // 8))
        self._within_s = within_s
        self._found: dict[str, _Stranger] = {}
        self._loop = asyncio.get_running_loop()
        self._look()

    def _look(self) -> None:
        """Drops those whose time is up, again and again."""
        before_s = time.monotonic() - self._within_s
        for name, one in list(self._found.items()):
            if one.since_s < before_s:
                self.drop(name)
        self._loop.call_later(min(_LOOK_S, self._within_s), self._look)

    def add(self, name: str, transport: Any) -> None:
        """Takes in a connection.

        Args:
            name: That no other one has.
            transport: It is aborted if it is not trusted in time.
        """
        if len(self._found) >= self._most:
            self.drop(next(iter(self._found)))
        self._found[name] = _Stranger(transport, time.monotonic())

    def trust(self, name: str) -> None:
        """Forgets a connection, which stays."""
        self._found.pop(name, None)

    def drop(self, name: str) -> None:
        """Ends a connection, if it is a stranger's."""
        if name in self._found:
            self._found.pop(name).transport.abort()

    def refuse(self, name: str) -> None:
        """Notes that a stranger was refused; of one who asks on and on no more is heard."""
        one = self._found.get(name)
        if one is None:
            return
        one.num_refused += 1
        if one.num_refused == _MOST_REFUSALS:
            one.transport.pause_reading()
            self._loop.call_later(_GOODBYE_S, self.drop, name)
