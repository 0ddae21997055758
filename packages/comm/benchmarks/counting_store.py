"""A store that counts what is asked of it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a store.

    Args:
        name: The method.
        keys: Which keys it was about.
        sizes: How many bytes were set, or returned, for each.
    """

    name: str
    keys: tuple[str, ...]
    sizes: tuple[int, ...] = ()


class CountingStore(Store):
    """Passes everything on to another store, and keeps a record.

    Thread-safe if the other store is. Keep a reference to it for as long as a process
    group uses it: C++ does not.

    Args:
        inner: Where keys and values really are.

    Attributes:
        operations: What was asked for, in order.

    Example:
        >>> from torch.distributed import HashStore
        >>> store = CountingStore(HashStore())
        >>> store.set("key", "value")
        >>> store.get("key"), dict(store.counts)
        (b'value', {'set': 1, 'get': 1})
    """

    # torch's, which its stubs do not have.
    timeout: timedelta

    def __init__(self, inner: Store) -> None:
        """Takes over the inner store's timeout."""
        super().__init__()
        # Not of its type, whose stubs lack half of the methods.
        self._inner: Any = inner
        self.operations: list[Operation] = []
        self._lock = threading.Lock()
        self.set_timeout(inner.timeout)  # type: ignore[attr-defined]

    @property
    def counts(self) -> Counter[str]:
        """How often each method was called."""
        return Counter(operation.name for operation in self.operations)

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a key."""
        self._note("set", [key], [value])
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        """Returns the value of a key, once it is set."""
        # As long as this store waits, which may have been changed since.
        self._inner.set_timeout(self.timeout)
        value: bytes = self._inner.get(key)
        self._note("get", [key], [value])
        return value

    def add(self, key: str, value: int) -> int:
        """Adds to a counter."""
        self._note("add", [key])
        return int(self._inner.add(key, value))

    def append(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a value."""
        self._note("append", [key], [value])
        self._inner.append(key, value)

    def compare_set(
        self, key: str, expected_value: str | bytes, desired_value: str | bytes
    ) -> bytes:
        """Sets a key if its value is as expected."""
        self._note("compare_set", [key], [desired_value])
        return bytes(self._inner.compare_set(key, expected_value, desired_value))

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all the keys are set."""
        self._note("check", keys)
        return bool(self._inner.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all the keys are set."""
        self._note("wait", keys)
        self._inner.wait(list(keys), self.timeout if timeout is None else timeout)

    def delete_key(self, key: str) -> bool:
        """Deletes a key."""
        self._note("delete_key", [key])
        return bool(self._inner.delete_key(key))

    def num_keys(self) -> int:
        """Returns the number of keys."""
        self._note("num_keys", [])
        return int(self._inner.num_keys())

    # C++ looks these two up by these names.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815

    def list_keys(self) -> list[str]:
        """Returns the keys."""
        self._note("list_keys", [])
        return list(self._inner.list_keys())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the values of keys, once all are set."""
        self._inner.set_timeout(self.timeout)
        values: list[bytes] = self._inner.multi_get(list(keys))
        self._note("multi_get", keys, values)
        return values

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Sets keys."""
        self._note("multi_set", keys, values)
        self._inner.multi_set(list(keys), list(values))

    def has_extended_api(self) -> bool:
        """Returns whether the inner store does several keys at once."""
        return bool(self._inner.has_extended_api())

    def clone(self) -> CountingStore:
        """Returns this store, so that nothing escapes the record."""
        return self

    def _note(
        self, name: str, keys: Sequence[str], values: Sequence[str | bytes] = ()
    ) -> None:
        sizes = tuple(map(len, values))
        with self._lock:
            self.operations.append(Operation(name, tuple(keys), sizes))
