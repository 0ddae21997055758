"""Interceptor that admits calls with the job's token and the service's version."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

import grpc

from drivetrain_elastic.protocol._service import API

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def refusal(metadata: dict[str, str], token: str) -> tuple[grpc.StatusCode, str] | None:
    """Returns why a call is refused, or None.

    Args:
        metadata: Of the call.
        token: Of the job.
    """
    given = metadata.get("authorization", "")
    # In constant time, so that nobody learns the token letter by letter.
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        what = "a wrong token" if given else "no token"
        return grpc.StatusCode.UNAUTHENTICATED, f"the call carries {what}"
    spoken = metadata.get("drivetrain-api")
    if spoken != API:
        message = (
            f"the caller speaks version {spoken} of the service, the master {API}; "
            "install the same version of drivetrain-elastic everywhere"
        )
        return grpc.StatusCode.FAILED_PRECONDITION, message
    return None


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls before anything of them is read, whatever the connection has shown.

    Args:
        token: Of the job.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Lets a call through, or answers it."""
        reason = refusal(dict(details.invocation_metadata), self._token)
        if reason is None:
            return await continuation(details)

        async def refuse(_: Any, context: Any) -> Any:
            await context.abort(*reason)
            yield  # makes this a generator, which gRPC expects here

        # Of a call that may send many messages none is read before it is asked for.
        return grpc.stream_stream_rpc_method_handler(refuse)
