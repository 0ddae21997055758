"""Rendezvous store over TCP for nodes without a master: one of them serves it to the end."""

from __future__ import annotations

import contextlib
import errno
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.distributed_c10d import Store

_CONNECT = timedelta(seconds=60)
# How long the one that serves waits for others to take leave.
_LEAVE = timedelta(seconds=10)
_NOT_HERE = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}


@contextlib.contextmanager
def tcp_rendezvous_store(
    host: str, port: int, *, num_nodes: int, node: str
) -> Iterator[Store]:
    """Yields a store that is served at an address, by this node if the address is its own.

    It listens at that address only. Whoever reaches it can read and write it.

    Args:
        host: Of the node that serves.
        port: There.
        num_nodes: How many nodes meet.
        node: The name of this one.

    Raises:
        DistributedError: Nobody serves there.
    """
    listener = _listen(host, port)
    is_host = listener is not None
    # The store closes the descriptor; this object must not.
    descriptor = None if listener is None else listener.detach()
    try:
        store = TCPStore(
            host,
            port,
            is_master=is_host,
            timeout=_CONNECT,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )
    except DistError as error:
        message = f"no node serves a store at {host}:{port}: {error}"
        raise DistributedError(message) from error
    try:
        yield store
    finally:
        # Who serves may be gone already, with an error that has been raised.
        with contextlib.suppress(DistError):
            if store.add("left", 1) >= num_nodes:
                store.set("all left", node)
            if is_host:
                store.wait(["all left"], _LEAVE)


def _listen(host: str, port: int) -> socket.socket | None:
    """Returns a socket that listens there; None where the address is another node's."""
    try:
        return socket.create_server((host, port), backlog=1024)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return None
        message = f"{host}:{port} is no address to meet at: {error}"
        raise DistributedError(message) from error
