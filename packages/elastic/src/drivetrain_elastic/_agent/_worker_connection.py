"""Connections of an agent to the workers on its node: JSON over a local socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_LIMIT = 16 << 20


class WorkerConnection:
    """The connection to one worker; used from one event loop.

    Args:
        writer: The way to the worker.

    Attributes:
        pid: The worker's process, as the system says.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        peer: socket.socket = writer.get_extra_info("socket")
        size = struct.calcsize("3i")
        found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        self.pid: int = struct.unpack("3i", found)[0]

    def send(self, what: str, **fields: Any) -> None:
        """Tells the worker something; nothing happens if it is gone."""
        line = json.dumps({"what": what, **fields}) + "\n"
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(line.encode())

    def close(self) -> None:
        """Ends the connection."""
        self._writer.close()


async def serve_workers(
    path: str, *, heard: Callable[[WorkerConnection, dict[str, Any]], None]
) -> asyncio.Server:
    """Waits for workers at a socket.

    Args:
        path: Of the socket.
        heard: Takes each message; the first one says which worker it is.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = WorkerConnection(writer)
        try:
            async for line in reader:
                heard(connection, json.loads(line))
        except (OSError, ValueError) as error:
            # The worker is dying, or its memory is not what it was: its end is noticed.
            logger.info("the line to process %d broke: %s", connection.pid, error)
        finally:
            connection.close()

    return await asyncio.start_unix_server(serve, path, limit=_LIMIT)
