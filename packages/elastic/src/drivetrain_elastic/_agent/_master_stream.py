"""Stream of an agent to the master, opened again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING, Any

import grpc

from drivetrain_elastic._client._address import split_addresses
from drivetrain_elastic._client._master_client import MasterError, RefusedError
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.protocol._service import CHANNEL_OPTIONS, METHODS, credentials

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009  (its types do not name it)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5
# An agent that was started again may come before its node is known to have gone.
_DUPLICATE_S = 10.0
# After such a time without a master it is said, and sooner nobody gives up.
_SILENT_S, _LEAST_PATIENCE_S = 3.0, 5.0
_REFUSED = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
}


class MasterStream:
    """Tells the master what happens here and hears what is decided; of one event loop.

    Args:
        address: Of the master, `host:port`, or of several that may serve, with commas.
        token: Of the job.
        hello: Makes the first message of a stream: all that the master has to know.
        heartbeat: Makes a message for as often as the master wants one.
        heard: Takes each message of the master.
        patience_s: How long to look for the first master; `inf` for ever. Once there was
            one, the next is looked for until the stream is closed.
        tls: Credentials of the channel; None where the master is on this machine.

    Attributes:
        is_open: Whether the master hears now what is sent.
        num_streams: How many there were, the open one included.
        place: Of this node among those that were there as it came, from 0.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        hello: Callable[[], pb.Hello],
        heartbeat: Callable[[], pb.Heartbeat],
        heard: Callable[[pb.ToAgent], None],
        patience_s: float = math.inf,
        tls: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._addresses = split_addresses(address)
        self._patience_s = max(patience_s, _LEAST_PATIENCE_S)
        self._token = token
        self._hello = hello
        self._heartbeat = heartbeat
        self._heard = heard
        self._tls = tls
        self._messages: asyncio.Queue[pb.FromAgent | None] | None = None
        self._heartbeat_s = 0.5
        self._is_closed = False
        self._why = "no reply"
        self._found = asyncio.Event()
        self.is_open = False
        self.num_streams = self.place = 0

    def send(self, message: pb.FromAgent) -> None:
        """Tells the master, unless there is none: then the next hello says it."""
        if self._messages is not None:
            self._messages.put_nowait(message)

    def close(self) -> None:
        """Ends the stream when what was sent has gone out; `run` returns."""
        self._is_closed = True
        if self._messages is not None:
            self._messages.put_nowait(None)

    async def run(self) -> None:
        """Keeps the stream until it is closed.

        Raises:
            RefusedError: The master does not want this agent.
            MasterError: There was none in time.
        """
        keeping = asyncio.create_task(self._keep())
        try:
            await self._find_master(keeping)
            await keeping
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _find_master(self, keeping: asyncio.Task[None]) -> None:
        """Waits for the first master, and says so if that takes long."""
        found = asyncio.create_task(self._found.wait())
        news: set[asyncio.Task[Any]] = {keeping, found}
        first = asyncio.FIRST_COMPLETED
        try:
            done, _ = await asyncio.wait(news, timeout=_SILENT_S, return_when=first)
            if done:
                return
            where = ", ".join(self._addresses)
            logger.warning(
                "the master at %s does not answer: %s; this agent looks for it %s",
                *(where, self._why, _so_long(self._patience_s)),
            )
            left_s = self._patience_s - _SILENT_S
            timeout_s = left_s if math.isfinite(left_s) else None
            done, _ = await asyncio.wait(news, timeout=timeout_s, return_when=first)
            if not done:
                message = (
                    f"the master at {where} has not answered for {self._patience_s:g} "
                    f"s: {self._why}; start it, and then its agents, or look whether its "
                    "address is right"
                )
                raise MasterError(message)
        finally:
            found.cancel()

    async def _keep(self) -> None:
        pause_s, began_s, attempt = _FIRST_WAIT_S, time.monotonic(), 0
        while not self._is_closed:
            address = self._addresses[attempt % len(self._addresses)]
            try:
                async with self._channel(address) as channel:
                    if await self._attend(channel):
                        return
            except grpc.aio.AioRpcError as error:
                code, why = error.code(), str(error.details())
            except _StreamBrokenError as error:
                code, why = error.code, str(error)
            else:
                code, why = grpc.StatusCode.OK, "the master ended it"
            self._why = why
            if code == grpc.StatusCode.ALREADY_EXISTS:
                # There is a master, which has to miss the agent before this one.
                self._found.set()
                if time.monotonic() > began_s + _DUPLICATE_S:
                    raise RefusedError(why)
            if code in _REFUSED:
                raise RefusedError(why)
            if self.is_open:
                logger.warning(
                    "the line to the master at %s is broken: %s", address, why
                )
                pause_s, began_s, attempt = _FIRST_WAIT_S, time.monotonic(), -1
            self._messages, self.is_open = None, False
            attempt += 1
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_WAIT_S)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        return grpc.aio.secure_channel(address, self._tls, options=_OPTIONS)

    async def _attend(self, channel: grpc.aio.Channel) -> bool:
        """Keeps one stream; returns whether it was closed from here."""
        method = METHODS["Attend"]
        attend: Any = channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        call = attend(metadata=credentials(self._token))
        # What happens after the hello was made is to follow it.
        messages: asyncio.Queue[pb.FromAgent | None] = asyncio.Queue()
        self._messages = messages
        await call.write(pb.FromAgent(hello=self._hello()))
        welcome = await call.read()
        if welcome is _EOF:
            await _raise_status(call)
            return False
        self._heartbeat_s = welcome.welcome.heartbeat_s
        self.place = welcome.welcome.place
        self.is_open = True
        self.num_streams += 1
        self._found.set()
        writer = asyncio.create_task(self._write(call, messages))
        try:
            while (message := await call.read()) is not _EOF:
                self._heard(message)
        finally:
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await writer
            call.cancel()
        if self._is_closed:
            return True
        await _raise_status(call)
        return False

    async def _write(
        self, call: Any, messages: asyncio.Queue[pb.FromAgent | None]
    ) -> None:
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    message = await messages.get()
            except TimeoutError:
                message = pb.FromAgent(heartbeat=self._heartbeat())
            if message is None:
                await call.done_writing()
                return
            await call.write(message)


def _so_long(seconds: float) -> str:
    return f"for {seconds:g} s" if math.isfinite(seconds) else "until there is one"


class _StreamBrokenError(Exception):
    """The master has ended a stream, with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


async def _raise_status(call: Any) -> None:
    code = await call.code()
    if code != grpc.StatusCode.OK:
        raise _StreamBrokenError(code, await call.details())
