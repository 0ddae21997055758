"""Store of `torch.distributed` that the master keeps, in which ranks find each other."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_elastic._client._master_client import MasterClient

# The first part of keys whose values are in the journal once they are set; numbers that
# are added to are not, and a key that is deleted comes back with the next master.
KEPT = "kept"

_TIMEOUT = timedelta(minutes=5)
# The master is asked anew, so that one that was started again knows who waits.
_LONGEST_WAIT_S = 5.0


class MasterStore(Store):
    """A `torch.distributed` store that the job's master keeps; safe in any thread.

    Whoever has not the job's token can neither read nor write it. Keys live in the
    master's memory: those of worlds that are over are forgotten, and so are all when the
    master dies, but for values that were set under `KEPT`.

    Args:
        client: Of the master.
        timeout: How long `get` and `wait` wait for keys.
    """

    def __init__(self, client: MasterClient, timeout: timedelta = _TIMEOUT) -> None:
        super().__init__()
        self._client = client
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """How long `get` and `wait` wait for keys."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Changes how long `get` and `wait` wait for keys."""
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a value."""
        self._client.call("SetKey", pb.KeyValue(key=key, value=_bytes(value)))

    def get(self, key: str) -> bytes:
        """Returns a value, and waits for it.

        Raises:
            DistStoreError: It was not there in time.
        """
        (value,) = self._get([key], self._timeout)
        return value

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Returns values, and waits for them."""
        return self._get(list(keys), self._timeout)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys are there.

        Raises:
            DistStoreError: They were not in time.
        """
        self._get(list(keys), self._timeout if timeout is None else timeout)

    def _get(self, keys: list[str], timeout: timedelta) -> list[bytes]:
        return list(self.read(keys, timeout).values)

    def read(
        self, keys: Sequence[str], timeout: timedelta, prefix: str = ""
    ) -> pb.Values:
        """Waits for keys, and returns the master's reply.

        Args:
            keys: Their names.
            timeout: How long to wait.
            prefix: What else is there under it comes along.

        Raises:
            DistStoreError: They were not there in time.
        """
        end_s = time.monotonic() + timeout.total_seconds()
        while True:
            wait_s = min(max(0.0, end_s - time.monotonic()), _LONGEST_WAIT_S)
            request = pb.KeysRequest(keys=keys, timeout_s=wait_s, prefix=prefix)
            reply: pb.Values = self._client.call("GetKeys", request, wait_s=wait_s)
            if reply.found:
                return reply
            if time.monotonic() >= end_s:
                message = (
                    f"the keys {', '.join(keys)} were not set within "
                    f"{timeout.total_seconds():g} s"
                )
                raise DistStoreError(message)

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all keys are there."""
        request = pb.KeysRequest(keys=list(keys))
        return bool(self._client.call("GetKeys", request).found)

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, which is 0 at first, and returns it."""
        request = pb.Addition(key=key, amount=amount, call=uuid.uuid4().bytes)
        return int(self._client.call("AddToKey", request).number)

    def compare_set(
        self, key: str, expected: str | bytes, desired: str | bytes
    ) -> bytes:
        """Sets a value if it is what is expected; returns what there is then."""
        request = pb.Comparison(
            key=key, expected=_bytes(expected), desired=_bytes(desired)
        )
        return bytes(self._client.call("CompareKey", request).value)

    def delete_key(self, key: str) -> bool:
        """Deletes a key; returns whether it was there."""
        return bool(self._client.call("DeleteKey", pb.Key(key=key)).number)

    def num_keys(self) -> int:
        """Returns how many keys there are."""
        return int(self._client.call("CountKeys", pb.Key()).number)

    def has_extended_api(self) -> bool:
        """Whether values can be appended to, and be set and read several at once."""
        return False


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
