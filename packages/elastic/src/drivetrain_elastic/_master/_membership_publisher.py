"""Publisher of the membership: what was decided is made durable, then agents are told."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from drivetrain_elastic._master._node import stop_message, world_message
from drivetrain_elastic.journal import JournalFullError, Record
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_elastic._master._journal_writer import JournalWriter
    from drivetrain_elastic._master._key_value_store import KeyValueStore
    from drivetrain_elastic.decisions.ending import Ending
    from drivetrain_elastic.decisions.membership import MembershipState

_NO_ROOM_S = 0.5
_NUM_EPOCHS_KEPT = 2


class MembershipPublisher:
    """Writes records and publishes worlds and the end; used from one event loop.

    Args:
        writer: Of the journal, which has a record before anybody is told.
        store: In which the ranks of a world meet.
        tell: Tells all agents that are there.

    Attributes:
        world: The last world that is durable, which whoever comes may be told; an empty
            message before the first.
        ending: The end of the job, likewise, with when it was; None before it.
    """

    def __init__(
        self, writer: JournalWriter, store: KeyValueStore, tell: Callable[[Any], None]
    ) -> None:
        self._writer = writer
        self._store = store
        self._tell = tell
        self._epochs: deque[int] = deque()
        self.world = pb.ToAgent()
        self.ending: pb.ToAgent | None = None

    def go_on(
        self, state: MembershipState, ending: Ending | None, ended_at_s: float
    ) -> None:
        """Takes what the master before this one has published.

        Args:
            state: Of the workers.
            ending: Of the job; None before it.
            ended_at_s: When it was, in seconds since 1970.
        """
        if state.world is not None:
            self.world = world_message(state)
        if ending is not None:
            self.ending = stop_message(ending, ended_at_s)

    async def publish(
        self, records: list[Record], state: MembershipState, ending: Ending | None
    ) -> None:
        """Writes records, and publishes what they say of worlds and of the end.

        Args:
            records: What was decided.
            state: Of the workers.
            ending: Of the job; None before it.
        """
        new = records
        while True:
            try:
                await self._writer.append(new)
                break
            except JournalFullError:
                # The writer keeps it; nobody is told until it is written.
                new = []
                await asyncio.sleep(_NO_ROOM_S)
        kinds = {record.kind for record in records}
        if "ended" in kinds:
            assert ending is not None
            self.ending = stop_message(ending, time.time())
            self._tell(stop_message(ending))
        elif "world" in kinds:
            assert state.world is not None
            self._forget_keys(state.world.epoch)
            self.world = world_message(state)
            # It is made into bytes once for all.
            self._tell(self.world.SerializeToString())

    def _forget_keys(self, epoch: int) -> None:
        """Deletes what the ranks of worlds before the last one have left behind."""
        self._epochs.append(epoch)
        while len(self._epochs) > _NUM_EPOCHS_KEPT:
            self._store.forget(f"world/{self._epochs.popleft()}/")
