"""Leadership of one of several masters: its lease is renewed, and its loss is told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from drivetrain_elastic.decisions.lease import LeaseState, renew_in
from drivetrain_elastic.journal import JournalError

if TYPE_CHECKING:
    from drivetrain_elastic.journal import Lease

logger = logging.getLogger(__name__)


class Leadership:
    """Renews a lease until the service ends, and releases it then; used from one loop.

    It runs in the master's own event loop: a loop that hangs loses the lease.

    Args:
        lease: One that was acquired, or None, which is kept without doing anything.
        stopping: Is set when the lease is lost.
    """

    def __init__(self, lease: Lease | None, stopping: asyncio.Event) -> None:
        self._lease = lease
        self._stopping = stopping
        self._address = ""
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drivetrain-lease")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begins to renew."""
        if self._lease is not None:
            self._task = asyncio.create_task(self._keep(self._lease))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends that, and lets the next master in."""
        if self._lease is None or self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._lease.release)
        self._thread.shutdown()

    def publish(self, address: str) -> None:
        """Tells those who wait where this master serves."""
        self._address = address
        self._changed.set()

    async def _keep(self, lease: Lease) -> None:
        now_s = time.monotonic()
        # Nobody knows here how old it is: it is renewed at once.
        state = LeaseState(renewed_s=now_s, tried_s=now_s)
        self._changed.set()
        while True:
            now_s = time.monotonic()
            pause_s, reason = renew_in(now_s, state, lease.lease_s)
            if pause_s is None:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            self._changed.clear()
            asked_s = time.monotonic()
            end_s = state.renewed_s + lease.lease_s
            is_held = await self._renew(lease, timeout_s=end_s - asked_s)
            if is_held:
                state = LeaseState(renewed_s=asked_s, tried_s=asked_s)
            else:
                state = state._replace(tried_s=asked_s, is_taken=is_held is False)
        logger.warning("this master gives way: %s", reason)
        self._stopping.set()

    async def _renew(self, lease: Lease, *, timeout_s: float) -> bool | None:
        """Returns whether the lease is still held; None if that is not known."""
        if timeout_s <= 0:
            return None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                return await loop.run_in_executor(
                    self._thread, lease.renew, self._address
                )
        except TimeoutError:
            logger.warning("the lease was not renewed: no answer within its time")
        except JournalError as error:
            logger.warning("the lease was not renewed: %s", error)
        return None
