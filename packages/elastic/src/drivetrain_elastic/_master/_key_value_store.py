"""Key-value store in memory, in which ranks find each other."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from drivetrain_elastic._client._master_store import KEPT
from drivetrain_elastic.journal import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_CALLS = 10_000


class KeyValueStore:
    """A store of keys and values with waiting; used from one event loop.

    Example:
        >>> async def example():
        ...     keys = KeyValueStore()
        ...     waiting = asyncio.create_task(keys.get(["a", "b"], 5.0))
        ...     await asyncio.sleep(0)
        ...     keys.set("a", b"1")
        ...     keys.set("b", b"2")
        ...     return await waiting
        >>> asyncio.run(example())
        [b'1', b'2']
    """

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        # What additions gave, by call, for callers that did not get the reply.
        self._calls: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        """Returns how many keys there are."""
        return len(self._values)

    def replay(self, record: Record) -> bool:
        """Takes a record of the journal; returns whether it was one of these."""
        if record.kind == "key":
            key, text = record.body
            self._values[key] = text.encode("latin-1")
        return record.kind == "key"

    def dump(self) -> list[Record]:
        """Returns records that take the place of all that were written."""
        return [
            self.record_of(key) for key in self._values if key.startswith(f"{KEPT}/")
        ]

    def record_of(self, key: str) -> Record:
        """Returns a key and its value, any bytes, as text that JSON can hold."""
        return Record("key", [key, self._values[key].decode("latin-1")])

    def set(self, key: str, value: bytes) -> None:
        """Sets a value and wakes those who wait for it."""
        self._values[key] = value
        for waiter in self._waiting.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def get(self, keys: Sequence[str], timeout_s: float) -> list[bytes] | None:
        """Returns the values of keys, or None if not all were there in time."""
        if all(key in self._values for key in keys):
            return [self._values[key] for key in keys]
        if timeout_s <= 0:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                for key in keys:
                    await self._come(key)
        except TimeoutError:
            return None
        # Keys may have been deleted meanwhile.
        if not all(key in self._values for key in keys):
            return None
        return [self._values[key] for key in keys]

    async def _come(self, key: str) -> None:
        while key not in self._values:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(key, set()).add(waiter)
            try:
                await waiter
            finally:
                left = self._waiting.get(key)
                if left is not None:
                    left.discard(waiter)
                    if not left:
                        del self._waiting[key]

    def add(self, key: str, amount: int, call: bytes) -> int:
        """Adds to a number, which is 0 at first; a call that is repeated counts once.

        Raises:
            ValueError: The value is no number.
        """
        if call and call in self._calls:
            return self._calls[call]
        try:
            number = int(self._values.get(key, b"0")) + amount
        except ValueError:
            message = f"key {key!r} holds no number"
            raise ValueError(message) from None
        self.set(key, str(number).encode())
        if call:
            self._calls[call] = number
            if len(self._calls) > _MOST_CALLS:
                self._calls.popitem(last=False)
        return number

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Sets a value if it is what is expected; returns what there is then.

        A key that is not there is set if nothing is expected, and otherwise left alone.
        """
        current = self._values.get(key)
        if current is None and expected:
            return expected
        if current is None or current == expected:
            self.set(key, desired)
            return desired
        return current

    def delete(self, key: str) -> bool:
        """Deletes a key; returns whether it was there."""
        return self._values.pop(key, None) is not None

    def count(self, prefix: str) -> int:
        """Returns how many keys begin so."""
        return sum(key.startswith(prefix) for key in self._values)

    def under(self, prefix: str, most_bytes: int) -> list[tuple[str, bytes]]:
        """Returns keys that begin so and their values, as many as fit."""
        found = []
        for key, value in self._values.items():
            if not key.startswith(prefix):
                continue
            most_bytes -= len(key) + len(value)
            if most_bytes < 0:
                break
            found.append((key, value))
        return found

    def forget(self, prefix: str) -> None:
        """Deletes all keys that begin so."""
        for key in [key for key in self._values if key.startswith(prefix)]:
            del self._values[key]
