"""Writer of the journal: decisions are appended in groups, before anybody is told."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from drivetrain_elastic.journal import JournalError, JournalFullError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_elastic.journal import Journal, Record

logger = logging.getLogger(__name__)


class JournalWriter:
    """Appends records to a journal from one thread; used from one event loop.

    What comes while the disk is busy is written together, so that many callers wait for
    one write. The journal has no gap, since whoever decides goes on from what was decided
    before: what finds no room is written before all that comes later, and after any other
    failure nothing is written any more.

    Args:
        journal: Where they go.

    Attributes:
        failure: What has ended the writing for good, or None.
    """

    def __init__(self, journal: Journal) -> None:
        self.failure: Exception | None = None
        self._is_full = False
        self._journal = journal
        self._pending: list[Record] = []
        self._next: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drivetrain-journal")

    async def append(self, records: Sequence[Record]) -> None:
        """Adds records after all that were given before; returns when they are durable.

        Raises:
            JournalFullError: There is no room. The records wait for the next ones.
            JournalError: The journal cannot be written; so for all that come later.
        """
        self.check()
        self._pending += records
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        done = self._next
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        # One caller that is cancelled must not cancel it for the others.
        await asyncio.shield(done)

    def check(self) -> None:
        """Returns if all that was appended so far could be written.

        Raises:
            JournalError: Something could not.
        """
        if self.failure is not None:
            raise JournalError(str(self.failure)) from self.failure

    async def _write(self) -> None:
        while self._next is not None:
            records, self._pending = self._pending, []
            done, self._next = self._next, None
            error = self.failure or await self._try(records)
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
                # Nobody may be waiting any more.
                done.exception()
        self._writer = None

    async def _try(self, records: list[Record]) -> Exception | None:
        """Appends records; returns why that failed."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._journal.append, records)
        except JournalFullError as error:
            self._pending[:0] = records
            if not self._is_full:
                self._is_full = True
                logger.warning("nothing is decided until there is room: %s", error)
            return error
        except Exception as error:  # noqa: BLE001
            # Those who wait for it are told, whatever it is. It may have been written
            # or not: whoever opens the journal next will see.
            self.failure = error
            return error
        if self._is_full:
            self._is_full = False
            logger.info("there is room in the journal again")
        return None

    async def close(self) -> None:
        """Waits for what is under way, and closes the journal."""
        if self._writer is not None:
            await asyncio.shield(self._writer)
        self._thread.shutdown()
        self._journal.close()
