"""Graceful shutdown: calls that wait, or stream, end with an error when the master does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar, cast

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable

_T = TypeVar("_T")


class MasterEndsError(DistributedError):
    """The master ends; another one, or the next, has the answer."""


class GracefulShutdown:
    """Ends the calls of a master before it ends itself; used from one event loop.

    A call that is still there when its server ends is broken off by gRPC, which tells the
    caller no reason, and writes a traceback.

    Example:
        >>> async def tell():
        ...     shutdown = GracefulShutdown()
        ...     asyncio.get_running_loop().call_later(0.01, shutdown.begin)
        ...     try:
        ...         await shutdown.wait(asyncio.sleep(60))
        ...     except MasterEndsError as error:
        ...         return str(error)
        >>> asyncio.run(tell())
        'the master ends'
    """

    def __init__(self) -> None:
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Ends all calls."""
        if not self._begun.done():
            self._begun.set_result(None)

    async def wait(self, work: Awaitable[_T]) -> _T:
        """Returns what some work does, unless the master ends before.

        Raises:
            MasterEndsError: It does.
        """
        working = asyncio.ensure_future(work)
        try:
            both: set[asyncio.Future[Any]] = {working, self._begun}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            if not working.done():
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
        message = "the master ends"
        raise MasterEndsError(message)

    async def stream(self, items: AsyncIterator[_T]) -> AsyncIterator[_T]:
        """Yields what comes until the master ends.

        Raises:
            MasterEndsError: It does.
        """
        made = cast("AsyncGenerator[_T]", items)
        async with contextlib.aclosing(made):
            while (item := await self.wait(anext(made, None))) is not None:
                yield item
