"""Interceptor that admits calls with the job's token and the service's version."""

from __future__ import annotations

import contextlib
import hmac
from typing import TYPE_CHECKING, Any

import grpc

from drivetrain_elastic.protocol._service import API, METHODS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from drivetrain_elastic._master._front_proxy import FrontProxy


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
    """Refuses calls before anything of them is read.

    Args:
        token: Of the job.
        proxy: Is told on which connections calls with the token come.
    """

    def __init__(self, token: str, proxy: FrontProxy) -> None:
        self._token = token
        self._proxy = proxy

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Lets a call through, or answers it."""
        reason = refusal(dict(details.invocation_metadata), self._token)
        if reason is None:
            handler = await continuation(details)
            if handler is None:
                return None
            return _telling(handler, details.method, self._proxy)

        async def refuse(_: Any, context: Any) -> Any:
            self._proxy.hear(context.peer(), is_refused=True)
            await context.abort(*reason)
            yield  # makes this a generator, which gRPC expects here

        # Of a call that may send many messages none is read before it is asked for.
        return grpc.stream_stream_rpc_method_handler(refuse)


def _telling(handler: Any, path: str, proxy: FrontProxy) -> Any:
    """Returns a handler that first tells on which connection its call has come."""
    method = METHODS[path.rsplit("/", 1)[-1]]
    answer = getattr(handler, method.kind)

    async def one(request: Any, context: Any) -> Any:
        proxy.hear(context.peer(), is_refused=False)
        return await answer(request, context)

    async def many(request: Any, context: Any) -> Any:
        proxy.hear(context.peer(), is_refused=False)
        async with contextlib.aclosing(answer(request, context)) as replies:
            async for reply in replies:
                yield reply

    return handler._replace(**{method.kind: many if method.gets_many else one})
