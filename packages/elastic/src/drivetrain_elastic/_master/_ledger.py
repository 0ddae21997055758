"""Writes to the journal what was decided, in groups, before anybody is told."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from drivetrain_elastic.journal import JournalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_elastic.journal import Journal, Record

__all__ = ["Ledger"]


class Ledger:
    """Appends records to a journal from one thread; used from one event loop.

    What comes while the disk is busy is written together, so that many callers wait for
    one write.

    Args:
        journal: Where they go.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._pending: list[Record] = []
        self._next: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._failure: JournalError | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drivetrain-journal")

    async def append(self, records: Sequence[Record]) -> None:
        """Adds records after all that were given before; returns when they are durable.

        Raises:
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
        if self._failure is not None:
            raise JournalError(str(self._failure)) from self._failure

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._next is not None:
            records, self._pending = self._pending, []
            done, self._next = self._next, None
            try:
                # What was decided since a write failed stands on what was not written.
                self.check()
                await loop.run_in_executor(self._thread, self._journal.append, records)
            except Exception as error:  # noqa: BLE001
                # Whatever it is, those who wait for it are told.
                if self._failure is None:
                    self._failure = JournalError(str(error))
                done.set_exception(error)
                # Nobody may be waiting any more.
                done.exception()
            else:
                done.set_result(None)
        self._writer = None

    async def close(self) -> None:
        """Waits for what is under way, and closes the journal."""
        if self._writer is not None:
            await asyncio.shield(self._writer)
        self._thread.shutdown()
        self._journal.close()
