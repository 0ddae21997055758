"""Worlds that a test writes to a store, for processes that have no agent."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from drivetrain_elastic._membership._rank_assignment import (
    MembershipSource,
    RankAssignment,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.distributed_c10d import Store

_MOST_WORLDS = 100


def connect_store() -> TCPStore:
    """Connects to the store of the ranks that `run_ranks` or torchrun has started."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False)


class ScriptedWorlds(MembershipSource):
    """A membership source that reads the worlds which `write_worlds` has written.

    One thread waits for the next world.

    Args:
        name: Of this worker.
        connect: Connects to the store, once for each thread.

    Attributes:
        steps: Each step that was reported, with the time of `time.monotonic()`.
    """

    def __init__(self, name: str, connect: Callable[[], Store]) -> None:
        self.name = name
        self.steps: list[tuple[int, float]] = []
        self._connect = connect
        self._heard: list[RankAssignment] = []
        self._change = threading.Condition()
        self._listeners: list[Callable[[RankAssignment], object]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        store, broken = self._connect(), 0
        for epoch in range(1, _MOST_WORLDS):
            try:
                text = store.get(f"seats/{epoch}").decode()
            except RuntimeError:
                return  # the store has gone: the test is over
            members, gone = (part.split() for part in text.split("|"))
            rank = members.index(self.name) if self.name in members else -1
            broken = epoch - 1 if gone else broken
            assignment = RankAssignment(
                epoch, rank, tuple(members), ("node",) * len(members)
            )
            assignment = assignment._replace(broken_epoch=broken)
            with self._change:
                self._heard.append(assignment)
                self._change.notify_all()
            for listener in self._listeners:
                listener(assignment)

    def latest(self) -> RankAssignment | None:
        """Returns the last assignment that was heard of."""
        return self._heard[-1] if self._heard else None

    def wait(self, newer_than: int, timeout_s: float) -> RankAssignment | None:
        """Returns an assignment of a later epoch; None if there is none in time."""

        def is_there() -> bool:
            return bool(self._heard) and self._heard[-1].epoch > newer_than

        with self._change:
            return (
                self._heard[-1] if self._change.wait_for(is_there, timeout_s) else None
            )

    def subscribe(
        self, heard: Callable[[RankAssignment], object]
    ) -> Callable[[], None]:
        """Tells a function of each assignment; returns what ends that."""
        self._listeners.append(heard)
        return lambda: self._listeners.remove(heard)

    def is_leaving(self) -> bool:
        """Returns whether this worker was in a world, and is not in the last one."""
        assignment = self.latest()
        return assignment is not None and self.has_left(assignment)

    def end_s(self) -> float:
        """Returns when this worker has to be gone: never."""
        return float("inf")

    def has_left(self, assignment: RankAssignment) -> bool:
        """Returns whether an assignment is that of a worker that has left."""
        return bool(self.steps) and assignment.rank < 0

    def report_step(self, step: int, seconds: float) -> None:
        """Keeps a step and its time."""
        del seconds
        self.steps.append((step, time.monotonic()))

    def report_broken(self, epoch: int, reason: str) -> None:
        """Tells the writer of worlds that this one is broken."""
        del epoch
        self._connect().set(f"broken/{self.name}", reason)


def write_worlds(
    store: Store, first: Iterable[str], events: Iterable[tuple[str, str]]
) -> None:
    """Writes worlds as workers die, leave and come, in the order of a script.

    Args:
        store: Where `ScriptedWorlds` read them.
        first: The names of the workers of the first world.
        events: What is waited for, and of whom: `("dead", "w1")`, `("leaving", "w0")`,
            `("ready", "w3")` or `("broken", "w2")`. Workers set the key `dead/w1` and so
            on; each event makes a world.
    """
    members = sorted(first)
    epoch = 1
    store.set(f"seats/{epoch}", f"{' '.join(members)}|")
    for what, name in events:
        store.wait([f"{what}/{name}"])
        if what == "ready":
            members = sorted([*members, name])
        elif what != "broken":
            members.remove(name)
        epoch += 1
        gone = name if what in {"dead", "broken"} else ""
        store.set(f"seats/{epoch}", f"{' '.join(members)}|{gone}")
