"""Answers to a store in another process, which asks over a line of JSON."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.distributed_c10d import Store


def answer_store(
    store: Store, asked: Mapping[str, Any], most_s: float
) -> dict[str, Any]:
    """Does what a `ParentStore` asks for; returns the reply.

    Args:
        store: The real one.
        asked: What came over the line.
        most_s: How long this may wait for keys, whatever was asked for.

    Example:
        >>> from torch.distributed import HashStore
        >>> store = HashStore()
        >>> answer_store(store, {"store": "add", "key": "n", "amount": 2}, 1.0)
        {'value': 2}
        >>> answer_store(store, {"store": "check", "keys": ["m"]}, 1.0)
        {'value': False}
    """
    operation, key = asked["store"], asked.get("key", "")
    wait_s = max(0.001, min(asked.get("timeout_s", most_s), most_s))
    patience = timedelta(seconds=wait_s)
    value: Any = None
    try:
        if operation == "set":
            set_bytes: Any = store.set
            set_bytes(key, base64.b64decode(asked["value"]))
        elif operation == "get":
            store.wait([key], patience)
            value = to_text(store.get(key))
        elif operation == "wait":
            store.wait(asked["keys"], patience)
        elif operation == "check":
            value = store.check(asked["keys"])
        elif operation == "add":
            value = store.add(key, asked["amount"])
        elif operation == "delete_key":
            value = store.delete_key(key)
        else:
            return {"error": f"the store has no operation {operation!r}"}
    except RuntimeError as error:
        # Stores raise errors of different kinds when the time is up.
        return {"error": str(error)}
    return {"value": value}


def to_text(value: str | bytes) -> str:
    """Returns a value as JSON can carry it."""
    raw = value.encode() if isinstance(value, str) else bytes(value)
    return base64.b64encode(raw).decode()
