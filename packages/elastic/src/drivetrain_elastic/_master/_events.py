"""What happened in a job, numbered, for people and for programs that watch."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_elastic.journal import Record
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from drivetrain_elastic._master._journal_writer import JournalWriter

_KIND = "event"
# What a journal keeps when it is made shorter.
_MOST = 100_000


class LoggedEvent(NamedTuple):
    """One thing that happened.

    Attributes:
        number: Which one, from 1.
        at_s: When, in seconds since 1970 on the master's clock.
        kind: What it was: `world`, `node-lost`, `worker-failed`, for example.
        subject: Of whom.
        reason: Why.
    """

    number: int
    at_s: float
    kind: str
    subject: str
    reason: str


class EventLog:
    """The events of a job; used from one event loop.

    Args:
        writer: Of the journal.
    """

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self._events: list[LoggedEvent] = []
        self._change = asyncio.Event()

    def replay(self, record: Record) -> bool:
        """Takes a record of the journal; returns whether it was an event."""
        if record.kind != _KIND:
            return False
        event = LoggedEvent(*record.body)
        # What no message can hold is no event.
        pb.Event(**event._asdict())
        self._events.append(event)
        return True

    def dump(self) -> list[Record]:
        """Returns records that take the place of all that were written."""
        del self._events[:-_MOST]
        return [Record(_KIND, list(event)) for event in self._events]

    def last_s(self, kind: str) -> float | None:
        """Returns when something of a kind last happened; None if it is not known."""
        times = (one.at_s for one in reversed(self._events) if one.kind == kind)
        return next(times, None)

    def make(self, kind: str, subject: str, reason: str) -> Record:
        """Adds an event, and returns the record that is to be written with it."""
        number = self._events[-1].number + 1 if self._events else 1
        event = LoggedEvent(number, time.time(), kind, subject, reason)
        self._events.append(event)
        change, self._change = self._change, asyncio.Event()
        change.set()
        return Record(_KIND, list(event))

    async def add(self, kind: str, subject: str, reason: str) -> None:
        """Adds an event; it is durable when this returns."""
        await self._writer.append([self.make(kind, subject, reason)])

    async def watch(self, start: int, *, follow: bool) -> AsyncIterator[LoggedEvent]:
        """Yields events from a number on, and, if asked, those that are still to come."""
        while True:
            change = self._change
            for event in self._since(start):
                yield event
                start = event.number + 1
            if not follow:
                return
            if change is self._change:
                await change.wait()

    def _since(self, number: int) -> list[LoggedEvent]:
        if not self._events:
            return []
        first = self._events[0].number
        return self._events[max(0, number - first) :]
