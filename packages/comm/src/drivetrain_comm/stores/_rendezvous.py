"""Lets ranks meet through `init_process_group(init_method="redis://HOST:PORT/JOB")`."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from drivetrain_comm.stores import _scripts
from drivetrain_comm.stores._address import SCHEMES, parse_address
from drivetrain_comm.stores._redis import RedisStore, StoreTimeoutError
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# How often one who waits shows that it lives, and for how long that counts.
_SIGN_S = 5.0
_LEASE_MS = 20_000
_MOST_NAMED = 8

_registered: set[str] = set()


def register_redis() -> None:
    """Makes `redis://` and `rediss://` known to `init_process_group`.

    Example:
        >>> register_redis()
        >>> register_redis()  # a second time changes nothing
    """
    for scheme in SCHEMES:
        # torch raises for a scheme that it knows, and has no public way to ask.
        if scheme not in _registered:
            dist.register_rendezvous_handler(scheme, _handle)  # type: ignore[attr-defined,no-untyped-call]
            _registered.add(scheme)


def join(store: RedisStore, rank: int, world_size: int, timeout: timedelta) -> int:
    """Waits until all ranks of one start of the job have come.

    From then on the store has keys of that start only: those of an earlier one, even of
    one that was killed, are of another generation. A rank that was killed while it
    waited here counts as present for 20 s more.

    Args:
        store: New, and used by nobody else yet.
        rank: This one.
        world_size: How many come.
        timeout: How long to wait for them.

    Returns:
        The generation, the same on all ranks.

    Raises:
        StoreTimeoutError: Not all have come in time.
    """
    client, who = store.client, secrets.token_hex(8)
    key = f"the place of rank {rank}"
    deadline = time.monotonic() + timeout.total_seconds()
    ask = (client.ttl_ms, rank, world_size, who, _LEASE_MS)
    is_complete = False
    try:
        while True:
            generation = int(client.script(_scripts.JOIN, key, *ask))
            left_s = min(_SIGN_S, max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(StoreTimeoutError):
                store.wait([f"{generation}/complete"], timedelta(seconds=left_s))
                is_complete = True
                client.enter(f"{client.data}:{generation}")
                return generation
            if time.monotonic() >= deadline:
                raise _absence(store, generation, world_size, timeout)
    finally:
        if not is_complete:
            # What led here counts, even if the server is away.
            with contextlib.suppress(DistributedError):
                client.script(_scripts.RESIGN, key, client.ttl_ms, rank, who)


def _absence(
    store: RedisStore, generation: int, world_size: int, timeout: timedelta
) -> StoreTimeoutError:
    keys = [f"{generation}/place/{rank}" for rank in range(world_size)]
    places = store.client.run("all", "HMGET", store.client.data, *keys)
    absent = [rank for rank, place in enumerate(places) if place is None]
    names = ", ".join(map(str, absent[:_MOST_NAMED]))
    more = len(absent) - _MOST_NAMED
    rest = f" and {more} more" if more > 0 else ""
    who = f"ranks {names}{rest}" if absent else "all at the same time"
    return StoreTimeoutError(
        f"waited {timeout.total_seconds():g} s in vain for {who} of {world_size} to come "
        f"to {store.address}, where no two jobs may share a name"
    )


def _handle(
    url: str, timeout: timedelta = default_pg_timeout, **_: Any
) -> Iterator[tuple[RedisStore, int, int]]:
    given = parse_address(url).given
    rank = _number(given, "rank", "RANK")
    world_size = _number(given, "world_size", "WORLD_SIZE")
    if not 0 <= rank < world_size:
        message = f"rank {rank} of a world of {world_size}: it must be 0 to one less"
        raise DistributedError(message)
    store = RedisStore(url, rank=rank, timeout=timeout)
    try:
        join(store, rank, world_size, timeout)
    except BaseException:
        store.close()
        raise
    yield store, rank, world_size
    message = "ranks do not meet again through redis://: start the processes again"
    raise DistributedError(message)


def _number(given: Mapping[str, str], name: str, variable: str) -> int:
    text = given.get(name) or os.environ.get(variable, "")
    try:
        return int(text)
    except ValueError as error:
        message = (
            f"redis:// needs a {name}: give {name}=... to init_process_group or set "
            f"{variable}, got {text!r}"
        )
        raise DistributedError(message) from error
