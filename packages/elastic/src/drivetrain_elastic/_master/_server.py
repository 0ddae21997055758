"""A gRPC server that answers calls of the master's service, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from typing import TYPE_CHECKING, Any

import grpc

from drivetrain_core import ProgramError
from drivetrain_elastic._client._address import is_free, is_loopback
from drivetrain_elastic._client._folder import make_folder
from drivetrain_elastic._master._auth_interceptor import AuthInterceptor
from drivetrain_elastic._master._front_proxy import FrontProxy
from drivetrain_elastic.protocol._service import MAX_MESSAGE_BYTES, METHODS, SERVICE

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

_HANDOVER_S = 2.0
_SOCKET = "server"
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 100),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
)


@contextlib.asynccontextmanager
async def serving(
    servicer: object,
    address: str,
    *,
    token: str,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serves while a block runs; gives the port.

    Args:
        servicer: Has a coroutine method for each call, or an asynchronous generator where
            the call answers with a stream. A call without one is not served.
        address: Where to listen, `host:port`; port 0 takes one that is free.
        token: Of the job.
        tls: With which the port is served. Without it only this machine may be served.

    Raises:
        ProgramError: The address cannot be had, or would be open to others without TLS.
    """
    if tls is None and not is_loopback(address):
        message = (
            f"{address} can be reached from other machines, so the master needs a "
            "certificate there: pass tls="
        )
        raise ProgramError(message)
    folder = make_folder(_SOCKET)
    path = f"{folder}/{_SOCKET}"
    proxy = FrontProxy(path, token, tls)
    server = grpc.aio.server(
        interceptors=[AuthInterceptor(token)],
        options=_OPTIONS,
        maximum_concurrent_rpcs=None,
    )
    handlers = {}
    for name, method in METHODS.items():
        if not hasattr(servicer, name):
            continue
        make = getattr(grpc, f"{method.kind}_rpc_method_handler")
        handlers[name] = make(
            getattr(servicer, name),
            request_deserializer=method.request.FromString,
            response_serializer=_serialize,
        )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, handlers),)
    )
    server.add_insecure_port(f"unix:{path}")
    try:
        await server.start()
        await _until_free(address)
        try:
            port = await proxy.listen(address)
        except OSError as error:
            message = (
                f"the master cannot listen at {address}: is the port in use? ({error})"
            )
            raise ProgramError(message) from error
        yield port
    finally:
        await server.stop(grace=0.5)
        proxy.close()
        shutil.rmtree(folder, ignore_errors=True)


def _serialize(message: Any) -> bytes:
    """Returns the bytes of a message; one that goes to many is made into them once."""
    if isinstance(message, bytes):
        return message
    made: bytes = message.SerializeToString()
    return made


async def _until_free(address: str) -> None:
    """Waits for the master before this one to let go of the port, for a moment."""
    end_s = time.monotonic() + _HANDOVER_S
    # What else is wrong with the address, the server says.
    with contextlib.suppress(OSError):
        while time.monotonic() < end_s and not is_free(address):
            await asyncio.sleep(0.01)
