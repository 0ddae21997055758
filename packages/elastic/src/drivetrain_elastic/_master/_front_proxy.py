"""Front proxy of a master's port: it looks at tokens, and passes owners on to the server.

gRPC holds what it needs for a connection from its first moment, for any number of them, and
closes none. So its server listens at a private socket, and this proxy at the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

from drivetrain_elastic._client._address import free_port, split_address
from drivetrain_elastic._client._unauthenticated import UnauthenticatedConnections
from drivetrain_elastic._master._auth_interceptor import refusal
from drivetrain_elastic._master._first_call import GREETING, first_call, refusal_of

_EVERYWHERE = {"0.0.0.0", "::"}
_AT_ONCE, _BACKLOG = 16, 4096
_PIECE = 1 << 16
# A client may send this much of a message before it hears that its call is refused.
_MOST_UNREAD = 128 << 10


class FrontProxy:
    """Passes on connections whose first call has the token; used from one event loop.

    Args:
        path: Of the socket at which the server listens, without TLS.
        token: Of the job.
        tls: With which the port is served; None for none.
    """

    def __init__(
        self, path: str, token: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self.path, self.token, self.tls = path, token, tls
        self.strangers = UnauthenticatedConnections()
        self.ends: set[_End] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, address: str) -> int:
        """Begins to listen, and returns the port.

        Raises:
            OSError: The address cannot be had.
        """
        host, port = split_address(address)
        port = port or free_port()
        host_or_all = None if host in _EVERYWHERE else host
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Outside(self), host_or_all, port, backlog=_AT_ONCE
        )
        for one in self._server.sockets:
            # More may wait than are accepted in one go, which keeps owners waiting.
            with one.dup() as waiting:
                waiting.listen(_BACKLOG)
        return port

    def close(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        self.strangers.close()
        for end in self.ends:
            end.transport.abort()


class _End(asyncio.Protocol):
    """One end of a connection: what comes to it goes to the other one."""

    transport: Any
    other: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        other, self.other = self.other, None
        if other is not None:
            other.transport.close()


class _Outside(_End):
    """The end at the port. It has another one as soon as its first call shows the token.

    Args:
        proxy: Of the port.
    """

    def __init__(self, proxy: FrontProxy) -> None:
        self._proxy = proxy
        self._tls = _Tls(proxy.tls) if proxy.tls else None
        self._said, self._num_unread = b"", 0
        self._is_refused = self._is_greeted = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._proxy.ends.add(self)
        self._proxy.strangers.add(transport)

    def write(self, data: bytes) -> None:
        super().write(data if self._tls is None else self._tls.encrypted(data))

    def data_received(self, data: bytes) -> None:
        if self._tls is not None:
            try:
                data = self._tls.decrypted(data)
            except ssl.SSLError:
                self.transport.abort()
                return
            self.transport.write(self._tls.answer())
        if self.other is not None:
            super().data_received(data)
        elif self._is_refused:
            self._num_unread += len(data)
            if self._num_unread > _MOST_UNREAD:
                self.transport.abort()
        else:
            self._said += data
            self._look()

    def _look(self) -> None:
        """Looks whether the first call has come, and may."""
        try:
            call = first_call(self._said)
        except ValueError:
            self.transport.abort()
            return
        if self._said and not self._is_greeted:
            self._is_greeted = True
            self.write(GREETING)
        if call is None:
            return
        self._said = b""
        reason = refusal(call.metadata, self._proxy.token)
        if reason is not None:
            self._is_refused = True
            code, message = reason
            self.write(refusal_of(call.stream, code.value[0], message))
            return
        self._proxy.strangers.trust(self.transport)
        self.transport.pause_reading()
        self._connecting = asyncio.create_task(self._connect(call.said))

    async def _connect(self, said: bytes) -> None:
        inside, loop = _End(), asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            await loop.create_unix_connection(lambda: inside, self._proxy.path)
            if not self.transport.is_closing():
                inside.other, self.other = self, inside
                inside.write(said)
                self.transport.resume_reading()
                return
            inside.transport.abort()
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._proxy.ends.discard(self)
        self._proxy.strangers.trust(self.transport)
        super().connection_lost(error)


class _Tls:
    """TLS of one connection, in memory: asyncio's own takes a quarter of a MiB for each.

    Args:
        context: Of the server.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._come, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._stream = context.wrap_bio(self._come, self._goes, server_side=True)
        self._has_begun = False

    def decrypted(self, data: bytes) -> bytes:
        """Returns what has come, in plain; `answer` is to be sent after it.

        Raises:
            ssl.SSLError: It is no TLS that is understood.
        """
        self._come.write(data)
        found = []
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            if not self._has_begun:
                self._stream.do_handshake()
                self._has_begun = True
            while piece := self._stream.read(_PIECE):
                found.append(piece)
        return b"".join(found)

    def encrypted(self, data: bytes) -> bytes:
        """Returns what is to be sent for it."""
        self._stream.write(data)
        return self.answer()

    def answer(self) -> bytes:
        """Returns what the protocol itself has to send."""
        return self._goes.read()
