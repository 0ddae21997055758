"""torch's `Store` over a Redis server, which outlives the ranks and serves many jobs."""

from __future__ import annotations

import math
import secrets
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from drivetrain_comm.stores import _scripts
from drivetrain_comm.stores._address import parse_address
from drivetrain_comm.stores._client import Client, encode_all, rank_from
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Sequence

# How long a wait blocks at most before it looks again, in case the server has lost it.
_SLICE_S = 5.0
_MOST_NAMED = 8
# Of a wait that was given up without notice.
_SLACK_S = 60.0
# So that no command is too large and no reply keeps others waiting.
_MOST_KEYS = 1024

# C++ may hold a store that Python has let go of, and would then find no methods.
_living: dict[int, RedisStore] = {}


class StoreTimeoutError(DistributedError, DistStoreError):
    """Keys of a store were not set in time; the message names them."""


class RedisStore(Store):
    """A store whose keys lie on a Redis server (6 or later), under the job's name.

    It does all that `torch.distributed.TCPStore` does but queues, to the letter. Waiting
    blocks on the server: a key that is set wakes those who wait for it, and an operation
    on many keys is one round trip. It connects when it is first used.

    Thread-safe, and it may be used after a fork. A store lives, and renews the time to
    live of its keys, until `close`.

    Args:
        url: `redis://[:PASSWORD@]HOST[:PORT]/JOB`, or `rediss://...` for TLS; see
            `parse_address`. Keys of an earlier start of the job that are not yet
            forgotten are seen, until `join`; `init_process_group(init_method=URL)`
            joins.
        rank: Who this is, for messages; by default RANK of the environment.
        timeout: How long `get` and `wait` wait.
        ttl: When the server forgets the job after the last sign of life of any rank.
        retry: For how long a server that is away is tried again.

    Raises:
        MissingLibraryError: redis-py is not installed.
        DistributedError: The URL is not as it must be. Every method raises it when the
            server has been away for longer than `retry`, refuses the password, or was
            restarted and has lost the keys.

    Example:
        >>> store = RedisStore("redis://10.0.0.1:6379/run-7", rank=0)  # doctest: +SKIP
        >>> store.set("key", "value")  # doctest: +SKIP
        >>> store.get("key")  # doctest: +SKIP
        b'value'
    """

    # torch's, which its stubs do not have.
    timeout: timedelta

    def __init__(
        self,
        url: str,
        *,
        rank: int | None = None,
        timeout: timedelta = timedelta(minutes=5),
        ttl: timedelta = timedelta(hours=12),
        retry: timedelta = timedelta(seconds=15),
    ) -> None:
        """Connects to nothing yet."""
        super().__init__()
        self.address = parse_address(url)
        self.client = Client(
            self.address,
            # The braces keep a job on one node of a Redis cluster.
            prefix=f"drivetrain:{{{self.address.job}}}",
            rank=rank_from() if rank is None else rank,
            ttl_s=ttl.total_seconds(),
            retry_s=retry.total_seconds(),
        )
        self.set_timeout(timeout)
        _living[id(self)] = self

    @property
    def host(self) -> str:
        """The server's name or address."""
        return self.address.host

    @property
    def port(self) -> int:
        """The server's port."""
        return self.address.port

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a key, and wakes who waits for it."""
        self.multi_set([key], [value])

    def get(self, key: str) -> bytes:
        """Returns the value of a key, once it is set.

        Raises:
            StoreTimeoutError: It was not set in time.
        """
        return self.multi_get([key])[0]

    def add(self, key: str, value: int) -> int:
        """Adds to a counter, 0 if it is not set, and returns the sum."""
        return int(self.client.once(_scripts.ADD, key, int(value)))

    def append(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a value, empty if it is not set."""
        self.client.once(_scripts.APPEND, key, _value(value))

    def compare_set(
        self, key: str, expected_value: str | bytes, desired_value: str | bytes
    ) -> bytes:
        """Sets a key if its value is as expected; empty if it should not be set yet.

        Returns:
            The value that stands then, or the expected one if the key is not set.
        """
        values = _value(expected_value), _value(desired_value)
        return self.client.once(_scripts.COMPARE_SET, key, *values)

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all the keys are set."""
        names = encode_all(keys)
        return not keys or not self.client.script(_scripts.MISSING, keys[0], *names)

    def delete_key(self, key: str) -> bool:
        """Deletes a key, and returns whether it was set."""
        return self.client.once(_scripts.DELETE, key) == b"1"

    def num_keys(self) -> int:
        """Returns the number of keys of the job."""
        return int(self.client.run("all", "HLEN", self.client.data))

    # C++ looks these two up by these names.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815

    def list_keys(self) -> list[str]:
        """Returns the keys of the job."""
        found = self.client.run("all", "HKEYS", self.client.data)
        return [key.decode("utf-8", "surrogateescape") for key in found]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Sets keys in one round trip, each like `set`."""
        if len(keys) != len(values):
            message = f"{len(keys)} keys need as many values, got {len(values)}"
            raise DistributedError(message)
        names = encode_all(keys)
        for start in range(0, len(keys), _MOST_KEYS):
            part = slice(start, start + _MOST_KEYS)
            pairs = zip(names[part], map(_value, values[part]), strict=True)
            flat = [item for pair in pairs for item in pair]
            self.client.script(_scripts.SET, keys[start], self.client.ttl_ms, *flat)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the values of keys, once all are set.

        Raises:
            StoreTimeoutError: One was not set in time.
        """
        if not keys:
            return []
        names = encode_all(keys)
        deadline = time.monotonic() + self.timeout.total_seconds()
        while True:
            found = self.client.run(keys[0], "HMGET", self.client.data, *names)
            if None not in found:
                return [bytes(value) for value in found]
            lacking = [k for k, value in zip(keys, found, strict=True) if value is None]
            self._wait(lacking, deadline, self.timeout)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all the keys are set.

        Args:
            keys: Their names.
            timeout: How long, instead of what was given for the store.

        Raises:
            StoreTimeoutError: They were not set in time.
        """
        timeout = self.timeout if timeout is None else timeout
        self._wait(keys, time.monotonic() + timeout.total_seconds(), timeout)

    def has_extended_api(self) -> bool:
        """Returns that `append`, `multi_get` and `multi_set` are there."""
        return True

    def clone(self) -> RedisStore:
        """Returns this store: threads may share it."""
        return self

    def forget(self) -> None:
        """Deletes all keys of the job from the server, for all ranks, and closes."""
        self.client.forget()
        self.close()

    def close(self) -> None:
        """Closes the connections, after which no process group may use the store."""
        _living.pop(id(self), None)
        self.client.close()

    def _wait(self, keys: Sequence[str], deadline: float, timeout: timedelta) -> None:
        names = list(dict.fromkeys(encode_all(keys)))
        for start in range(0, len(names), _MOST_KEYS):
            self._wait_for_part(names[start : start + _MOST_KEYS], deadline, timeout)

    def _wait_for_part(
        self, names: list[bytes], deadline: float, timeout: timedelta
    ) -> None:
        client, first = self.client, _text(names[0])
        while True:
            # A new name each time: what an earlier wait has left must not end this one.
            waiter = secrets.token_hex(8)
            left_s = max(0.0, deadline - time.monotonic())
            ttl_ms = int((left_s + _SLACK_S) * 1000)
            if not client.script(_scripts.WAIT, first, ttl_ms, waiter, *names):
                return
            if left_s > 0 and client.block(waiter, min(left_s, _SLICE_S), first):
                return
            missing = client.script(_scripts.LEAVE, first, waiter, *names)
            if missing and time.monotonic() >= deadline:
                _give_up(missing, timeout)


def _give_up(missing: Sequence[bytes], timeout: timedelta) -> None:
    names = ", ".join(_text(name) for name in missing[:_MOST_NAMED])
    more = len(missing) - _MOST_NAMED
    rest = f" and {more} more" if more > 0 else ""
    milliseconds = math.ceil(timeout.total_seconds() * 1000)
    message = f"wait timeout after {milliseconds}ms, keys: {names}{rest}"
    raise StoreTimeoutError(message)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _value(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
