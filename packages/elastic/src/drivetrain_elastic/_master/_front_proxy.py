"""Front proxy of a master's port: it passes connections on to the server, and bounds strangers.

gRPC holds what it needs for a connection from its first moment, for any number of them, and
closes none. So its server listens at a private socket, and this proxy at the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
import socket
from typing import Any

from drivetrain_elastic._client._address import free_port, split_address
from drivetrain_elastic._client._unauthenticated import UnauthenticatedConnections

_NAME = re.compile(r"drivetrain-\w+")
_EVERYWHERE = {"0.0.0.0", "::"}
_BATCH, _BACKLOG = 128, 4096


class FrontProxy:
    """Passes on what comes to a port; used from one event loop.

    A connection is a stranger's until the server has seen the token on it.

    Args:
        path: Of the socket at which the server listens.
        begins: What the first bytes of all that it understands are.
    """

    def __init__(self, path: str, begins: bytes) -> None:
        self.path, self.begins = path, begins
        self.strangers = UnauthenticatedConnections()
        self._tag, self._numbers = secrets.token_hex(4), itertools.count()
        self.ends: set[_End] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, address: str) -> int:
        """Begins to listen, and returns the port.

        Raises:
            OSError: The address cannot be had.
        """
        host, port = split_address(address)
        port = port or free_port()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Outside(self, f"drivetrain-{self._tag}_{next(self._numbers)}"),
            None if host in _EVERYWHERE else host,
            port,
            backlog=_BATCH,
        )
        for one in self._server.sockets:
            # More may wait than are accepted in one go.
            with one.dup() as waiting:
                waiting.listen(_BACKLOG)
        return port

    def hear(self, peer: str, *, is_refused: bool) -> None:
        """Notes that a call has come, with the token or not, from what gRPC calls a peer."""
        if found := _NAME.search(peer):
            note = self.strangers.refuse if is_refused else self.strangers.trust
            note(found[0])

    def close(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        for end in self.ends:
            end.transport.abort()


class _End(asyncio.Protocol):
    """One end of a connection: what comes to it goes to the other one."""

    transport: Any
    other: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class _Outside(_End):
    """The end at the port. It has another one as soon as something has come.

    Args:
        proxy: Of the port.
        name: By which the server knows the connection.
    """

    def __init__(self, proxy: FrontProxy, name: str) -> None:
        self._proxy, self._name = proxy, name

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._proxy.ends.add(self)
        self._proxy.strangers.add(self._name, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self.transport.pause_reading()
        self._connecting = asyncio.create_task(self._connect(data))

    async def _connect(self, data: bytes) -> None:
        inside, loop = _End(), asyncio.get_running_loop()
        knows = data.startswith(self._proxy.begins)
        may_enter = knows and await self._proxy.strangers.enter(self._name)
        if may_enter and not self.transport.is_closing():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as plug:
                plug.setblocking(False)
                # A name of the kernel's own, which needs no file: the server sees it.
                plug.bind(f"\0{self._name}")
                plug.connect(self._proxy.path)
                own = plug.dup()
                await loop.create_unix_connection(lambda: inside, sock=own)
                inside.other, self.other = self, inside
                inside.transport.write(data)
                self.transport.resume_reading()
        if self.other is None or self.transport.is_closing():
            self.transport.abort()
            self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._proxy.ends.discard(self)
        self._proxy.strangers.trust(self._name)
        super().connection_lost(error)
