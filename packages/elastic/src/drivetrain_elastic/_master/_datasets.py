"""Deals datasets to workers: decisions, the journal, and those who wait."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_elastic._master._dataset_records import (
    apply_record,
    opened,
    record_of,
    whole,
)
from drivetrain_elastic.decisions.shards import (
    Closed,
    DatasetState,
    append,
    commit,
    give_back,
    lease,
    return_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from drivetrain_elastic._master._journal_writer import JournalWriter
    from drivetrain_elastic.decisions.shards import DatasetSpec, Event, Lease, Returned
    from drivetrain_elastic.journal import Record

logger = logging.getLogger(__name__)

_MOST_SHARDS = 10_000


class Datasets:
    """All datasets of a job; used from one event loop.

    What is decided counts at once for later decisions, and is told to its worker when
    the journal has it.

    Args:
        writer: Of the journal.
        patience_s: How long a worker may hold shards without a word.
    """

    def __init__(self, writer: JournalWriter, *, patience_s: float = 60.0) -> None:
        self.states: dict[str, DatasetState] = {}
        self._writer = writer
        self._patience_s = patience_s
        self._changes: dict[str, asyncio.Event] = {}
        self._heard_s: dict[str, float] = {}
        # The last call of each worker that waits for shards of a dataset. One before it
        # may wait still, if its connection was lost without a word.
        self._asking: dict[tuple[str, str], object] = {}

    def replay(self, record: Record) -> bool:
        """Takes a record of the journal; returns whether it was about datasets."""
        return apply_record(self.states, record)

    def begin(self) -> None:
        """Waits from now on for a word of those that hold shards after the replay."""
        for state in self.states.values():
            for one in state.leased.values():
                self.hear(one.worker)

    def dump(self) -> list[Record]:
        """Returns records that take the place of all that were written."""
        return [whole(state) for state in self.states.values()]

    async def open(self, spec: DatasetSpec) -> DatasetState:
        """Makes a dataset known, or finds it known already.

        Raises:
            ProgramError: It is known, and is another one.
        """
        state = self.states.get(spec.name)
        if state is None:
            state = self.states[spec.name] = DatasetState(spec=spec)
            await self._writer.append([opened(spec)])
            logger.info("dataset %s: %s", spec.name, spec)
        elif state.spec != spec:
            mine, theirs = asdict(state.spec), asdict(spec)
            parts = [
                f"{name} is {mine[name]!r}, not {theirs[name]!r}"
                for name in mine
                if mine[name] != theirs[name]
            ]
            message = f"dataset {spec.name!r} stands already: {'; '.join(parts)}"
            raise ProgramError(message)
        else:
            # Whoever opened it first may still wait for the journal.
            await self._writer.append([])
        return state

    def find(self, name: str) -> DatasetState:
        """Returns a dataset.

        Raises:
            ProgramError: There is none of this name.
        """
        try:
            return self.states[name]
        except KeyError:
            known = ", ".join(sorted(self.states)) or "none"
            message = f"there is no dataset {name!r}; there is {known}"
            raise ProgramError(message) from None

    async def lease(
        self,
        name: str,
        worker: str,
        num_shards: int,
        timeout_s: float,
        held: Collection[int],
    ) -> tuple[list[Lease], bool]:
        """Leases shards, and waits for some if there are none now.

        Args:
            name: Of the dataset.
            worker: Who asks.
            num_shards: How many it wants at most.
            timeout_s: How long it waits.
            held: The leases that it knows of. Any others were in a reply that it did not
                get, and end.

        Returns:
            The leases, and whether all shards are done.

        Raises:
            ProgramError: There is no such dataset, or the number is out of range.
        """
        if not 1 <= num_shards <= _MOST_SHARDS:
            message = f"num_shards must be 1 to {_MOST_SHARDS}, got {num_shards}"
            raise ProgramError(message)
        state = self.find(name)
        mine = name, worker
        asking = self._asking[mine] = object()
        try:
            reason = "a reply did not arrive"
            unknown = return_of(state, [worker], failed=False, reason=reason)
            unknown = [event for event in unknown if event.fence not in held]
            if unknown:
                await self._do(state, unknown)
            return await self._wait(
                state,
                worker,
                num_shards,
                timeout_s,
                lambda: self._asking.get(mine) is asking,
            )
        finally:
            if self._asking.get(mine) is asking:
                del self._asking[mine]

    async def _wait(
        self,
        state: DatasetState,
        worker: str,
        num_shards: int,
        timeout_s: float,
        is_wanted: Callable[[], bool],
    ) -> tuple[list[Lease], bool]:
        """Leases shards as soon as there are any, as long as somebody wants them."""
        name = state.spec.name
        end_s = time.monotonic() + timeout_s
        while True:
            if not is_wanted():
                # The worker has asked again, and waits for that reply.
                return [], False
            self.hear(worker)
            event = lease(state, worker, num_shards)
            if event is not None:
                await self._do(state, [event])
                return list(event.leases), False
            if state.is_finished and state.is_closed:
                # What has finished it may not be durable yet.
                await self._write([], [])
                return [], True
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return [], False
            change = self._changes.setdefault(name, asyncio.Event())
            try:
                async with asyncio.timeout(left_s):
                    await change.wait()
            except TimeoutError:
                return [], False

    async def commit(
        self, name: str, worker: str, commits: Sequence[tuple[int, int]]
    ) -> list[str]:
        """Takes reports of fences and places; returns for each why it does not count."""
        state = self.find(name)
        self.hear(worker)
        refusals, records = [], []
        for fence, upto in commits:
            event, why = commit(state, worker, fence, upto)
            refusals.append(why)
            if event is not None:
                state.apply(event)
                records.append(record_of(name, event))
        await self._write([name], records)
        return refusals

    async def give_back(
        self, name: str, worker: str, fences: Sequence[int], failed: bool, reason: str
    ) -> list[str]:
        """Takes shards back; returns for each why it was not this worker's."""
        state = self.find(name)
        self.hear(worker)
        events, refusals = give_back(
            state, worker, fences, failed=failed, reason=reason
        )
        await self._do(state, events)
        return refusals

    async def grow(
        self,
        name: str,
        num_samples: int,
        *,
        close: bool,
        caller: str = "",
        call: int = 0,
    ) -> DatasetState:
        """Adds samples to a source, and closes it if asked.

        Args:
            name: Of the dataset.
            num_samples: How many.
            close: Whether these are the last.
            caller: Who may repeat this.
            call: Its how-manieth growth this is.

        Raises:
            ProgramError: It grows no more.
        """
        state = self.find(name)
        events: list[Event] = []
        if num_samples:
            event, why = append(state, num_samples, caller, call)
            if why:
                raise ProgramError(why)
            if event is not None:
                events.append(event)
        if close and not state.is_closed:
            events.append(Closed())
        await self._do(state, events)
        return state

    async def lose(
        self, workers: Collection[str], *, failed: bool, reason: str
    ) -> None:
        """Takes back all that workers hold that are gone."""
        # All of it at once, before the journal is waited for: meanwhile datasets are
        # opened, and the same workers may come back and lease again.
        for worker in workers:
            self._heard_s.pop(worker, None)
        names, records = [], []
        for name, state in self.states.items():
            events = return_of(state, workers, failed=failed, reason=reason)
            for event in events:
                state.apply(event)
                records.append(record_of(name, event))
            if events:
                logger.info("%d shards come back: %s", len(events), reason)
                names.append(name)
        if records:
            await self._write(names, records)

    def hear(self, worker: str) -> None:
        """Notes that a worker is there."""
        self._heard_s[worker] = time.monotonic()

    async def expire(self, present: Collection[str]) -> None:
        """Takes back what workers hold that have been silent for too long.

        Args:
            present: Workers that are known to be there in another way.

        Raises:
            JournalError: Something that was decided could not be written.
        """
        self._writer.check()
        now_s = time.monotonic()
        for worker in present:
            if worker in self._heard_s:
                self._heard_s[worker] = now_s
        gone = [w for w, at in self._heard_s.items() if now_s - at > self._patience_s]
        if gone:
            reason = f"{', '.join(gone)} said nothing for {self._patience_s:g} s"
            await self.lose(gone, failed=False, reason=reason)

    async def _do(
        self, state: DatasetState, events: Sequence[Event] | list[Returned]
    ) -> None:
        name = state.spec.name
        for event in events:
            state.apply(event)
        await self._write([name], [record_of(name, event) for event in events])

    async def _write(self, names: Collection[str], records: Sequence[Record]) -> None:
        """Writes what has happened to datasets, and all that was decided before.

        Without records too: what a caller repeats may not be durable yet.
        """
        try:
            await self._writer.append(records)
        finally:
            # It has happened even if there was no room for it, or nobody waits for it.
            for name in names:
                self._tell(name)

    def _tell(self, name: str) -> None:
        """Wakes those who wait for shards of a dataset."""
        change = self._changes.pop(name, None)
        if change is not None:
            change.set()
