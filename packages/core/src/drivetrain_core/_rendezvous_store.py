"""Rendezvous store of the ranks of a search: one of their own, kept by rank 0.

The default group's store only tells where it is. It lives in rank 0's process, so that
ranks that wait for rank 0 learn at once when it is gone, and what a search says in
minutes leaves the job's own store alone.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import Store  # type: ignore[attr-defined]

logger = logging.getLogger(__name__)

_CONNECT = timedelta(seconds=30)
_PREFIX = "drivetrain/accelerate"


# The default store of a process group, the store of its ranks, and how often it is used.
_current: tuple[Store, Store, Iterator[int]] | None = None


def rendezvous_store(name: str) -> tuple[Store, str]:
    """Returns the ranks' store, and a key that no round before has used.

    Every rank of the default process group calls this alike.

    Args:
        name: What the round is about; the key begins with it.
    """
    from torch.distributed import distributed_c10d

    global _current
    default = distributed_c10d._get_default_store()
    if _current is None or _current[0] is not default:
        _current = default, _opened(default), itertools.count(1)
    _, store, rounds = _current
    return store, f"{name}/{next(rounds)}"


class Notes:
    """What ranks tell one another without waiting: the last note of each.

    Every rank of the default process group makes one alike.

    Args:
        name: What it is about.
    """

    def __init__(self, name: str) -> None:
        import torch.distributed as dist

        self._store, key = rendezvous_store(name)
        self._keys = [f"{key}/{rank}" for rank in range(dist.get_world_size())]
        self._mine = self._keys[dist.get_rank()]

    def write(self, note: str) -> None:
        """Puts a note in place of this rank's last one."""
        self._store.set(self._mine, note)

    def read(self) -> list[str] | None:
        """Returns the notes of all ranks, or None until each has written one."""
        if not self._store.check(self._keys):
            return None
        return [note.decode() for note in self._store.multi_get(self._keys)]


def _opened(default: Store) -> Store:
    """Opens the store on rank 0 and joins it elsewhere; all ranks do, or none."""
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    words = PrefixStore(_PREFIX, default)
    rank, size = dist.get_rank(), dist.get_world_size()
    store = _served(words) if rank == 0 else _joined(words)
    words.set(f"joined/{rank}", "no" if store is None else "yes")
    keys = [f"joined/{other}" for other in range(size)]
    words.wait(keys, 2 * _CONNECT)
    if store is not None and all(words.get(key) == b"yes" for key in keys):
        return store
    if rank == 0:
        logger.info("ranks decide over the default store: not all reach another one")
    return words


def _served(words: Store) -> Store | None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host = _host_of(words)
    try:
        store = TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=_CONNECT
        )
    except RuntimeError as error:
        logger.debug("no store of its own: %s", error)
        words.set("address", "")
        return None
    words.set("address", f"{host}:{store.port}")
    return store


def _joined(words: Store) -> Store | None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    words.wait(["address"], _CONNECT)
    host, _, port = words.get("address").decode().rpartition(":")
    if not port:
        return None
    try:
        return TCPStore(host, int(port), is_master=False, timeout=_CONNECT)
    except RuntimeError as error:
        logger.debug("the store at %s:%s cannot be reached: %s", host, port, error)
        return None


def _host_of(words: Store) -> str:
    """Returns a name of rank 0's machine that the other ranks are likely to reach."""
    from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]

    inner = words
    while hasattr(inner, "underlying_store"):
        inner = inner.underlying_store
    if isinstance(inner, TCPStore):
        return inner.host
    if isinstance(inner, FileStore):
        return "localhost"
    return os.environ.get("MASTER_ADDR") or socket.gethostname()
