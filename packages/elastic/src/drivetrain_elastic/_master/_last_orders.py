"""Calls that wait, or go on, end with a word of the master when it does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar, cast

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable

__all__ = ["LastOrders", "MasterEndsError"]

_T = TypeVar("_T")


class MasterEndsError(DistributedError):
    """The master ends; another one, or the next, has the answer."""


class LastOrders:
    """Lets whoever waits for a master go before it ends; used from one event loop.

    A call that is still there when its server ends is broken off by gRPC, which tells the
    caller no reason, and writes a traceback.

    Example:
        >>> async def tell():
        ...     orders = LastOrders()
        ...     asyncio.get_running_loop().call_later(0.01, orders.call)
        ...     try:
        ...         await orders.wait(asyncio.sleep(60))
        ...     except MasterEndsError as error:
        ...         return str(error)
        >>> asyncio.run(tell())
        'the master ends'
    """

    def __init__(self) -> None:
        self._called: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def call(self) -> None:
        """Lets all go."""
        if not self._called.done():
            self._called.set_result(None)

    async def wait(self, work: Awaitable[_T]) -> _T:
        """Returns what some work does, unless the master ends before.

        Raises:
            MasterEndsError: It does.
        """
        working = asyncio.ensure_future(work)
        try:
            both: set[asyncio.Future[Any]] = {working, self._called}
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
