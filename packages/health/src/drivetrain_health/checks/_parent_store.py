"""A store of torch's that asks another process for everything, over a line of JSON."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from drivetrain_health.checks._answer_store import to_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT = timedelta(seconds=300)


class ParentStore(Store):
    """The store of whoever is at the other end of a line; used from one thread.

    Args:
        line: To a process that answers with `answer_store`.
    """

    def __init__(self, line: TextIO) -> None:
        super().__init__()
        self._line = line
        self._timeout = _TIMEOUT

    @property
    def timeout(self) -> timedelta:
        """How long `get` and `wait` wait for keys."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Changes how long `get` and `wait` wait for keys."""
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a value."""
        self._ask("set", key=key, value=to_text(value))

    def get(self, key: str) -> bytes:
        """Returns a value, and waits for it."""
        return base64.b64decode(
            self._ask("get", key=key, timeout_s=self._timeout.total_seconds())
        )

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Returns values, and waits for them."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Sets values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys are there."""
        patience = self._timeout if timeout is None else timeout
        self._ask("wait", keys=list(keys), timeout_s=patience.total_seconds())

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all keys are there."""
        return bool(self._ask("check", keys=list(keys)))

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, which is 0 at first, and returns it."""
        return int(self._ask("add", key=key, amount=amount))

    def delete_key(self, key: str) -> bool:
        """Deletes a key; returns whether it was there."""
        return bool(self._ask("delete_key", key=key))

    def has_extended_api(self) -> bool:
        """Whether values can be appended to, and be set and read several at once."""
        return False

    def _ask(self, operation: str, **arguments: Any) -> Any:
        self._line.write(json.dumps({"store": operation, **arguments}) + "\n")
        self._line.flush()
        reply = json.loads(self._line.readline() or '{"error": "the line has ended"}')
        if "error" in reply:
            raise DistStoreError(reply["error"])
        return reply["value"]
