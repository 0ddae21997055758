"""Rendezvous store of one process group: few calls to the master make it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import PrefixStore, Store

from drivetrain_elastic._client._master_store import MasterStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta


@contextlib.contextmanager
def rendezvous_store(store: Store, name: str) -> Iterator[Store]:
    """Gives the ranks of a group a store while they make it; it may be used later, too.

    Args:
        store: Of all ranks of the job.
        name: Of the rendezvous, which its keys begin with.
    """
    if not isinstance(store, MasterStore):
        yield PrefixStore(name, store)
        return
    found = RendezvousStore(store, name)
    try:
        yield found
    finally:
        found.forget()


class RendezvousStore(Store):
    """The keys of one rendezvous, set once each until it is over; safe in any thread.

    Whoever makes a mesh asks for the address of each rank in turn, first whether it is
    there and then for itself. Here one call brings all addresses that are there, and none
    is asked for twice.

    Args:
        store: The master's.
        name: Of the rendezvous.
    """

    def __init__(self, store: MasterStore, name: str) -> None:
        super().__init__()
        self._store = store
        self._prefix = f"{name}/"
        self._lock = threading.Lock()
        # None after the rendezvous.
        self._known: dict[str, bytes] | None = {}
        self._wants_others = True

    def forget(self) -> None:
        """Ends the rendezvous: from now on every value is asked for."""
        with self._lock:
            self._known = None

    @property
    def timeout(self) -> timedelta:
        """How long `get` and `wait` wait for keys."""
        return self._store.timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a value."""
        self._store.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        """Returns a value, and waits for it.

        Raises:
            DistStoreError: It was not there in time.
        """
        return self._read([key], self.timeout)[0]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys are there.

        Raises:
            DistStoreError: They were not in time.
        """
        self._read(keys, self.timeout if timeout is None else timeout)

    def _read(self, keys: Sequence[str], timeout: timedelta) -> list[bytes]:
        names = [self._prefix + key for key in keys]
        with self._lock:
            known = self._known
            found = {name: known[name] for name in names if known and name in known}
        missing = [name for name in names if name not in found]
        if missing:
            prefix = self._prefix if self._wants_others and known is not None else ""
            reply = self._store.read(missing, timeout, prefix)
            found.update(zip(missing, reply.values, strict=True))
            with self._lock:
                if self._known is not None:
                    others = {one.key: one.value for one in reply.others}
                    # Once as many are known as a reply holds, it brings nothing new.
                    self._wants_others = bool(others.keys() - self._known.keys())
                    self._known.update(others | found)
        return [found[name] for name in names]

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all keys are there."""
        return self._store.check([self._prefix + key for key in keys])

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, which is 0 at first, and returns it."""
        return self._store.add(self._prefix + key, amount)

    def compare_set(
        self, key: str, expected: str | bytes, desired: str | bytes
    ) -> bytes:
        """Sets a value if it is what is expected; returns what there is then."""
        return self._store.compare_set(self._prefix + key, expected, desired)

    def delete_key(self, key: str) -> bool:
        """Deletes a key; returns whether it was there."""
        return self._store.delete_key(self._prefix + key)
