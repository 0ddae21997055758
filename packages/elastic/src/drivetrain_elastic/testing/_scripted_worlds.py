"""Worlds that a test writes to a store, for processes that have no agent."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from drivetrain_elastic._seat import Seat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.distributed_c10d import Store

__all__ = ["ScriptedWorlds", "connect_store", "write_worlds"]

_MOST_WORLDS = 100


def connect_store() -> TCPStore:
    """Connects to the store of the ranks that `run_ranks` or torchrun has started."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False)


class ScriptedWorlds:
    """A source of seats that reads the worlds which `write_worlds` has written.

    It has the methods of what `ElasticLoop` asks its agent by; one thread waits for the
    next world.

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
        self._heard: list[Seat] = []
        self._change = threading.Condition()
        self._listeners: list[Callable[[Seat], object]] = []
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
            seat = Seat(epoch, rank, tuple(members), ("node",) * len(members))
            seat = seat._replace(broken_epoch=broken)
            with self._change:
                self._heard.append(seat)
                self._change.notify_all()
            for listener in self._listeners:
                listener(seat)

    def latest(self) -> Seat | None:
        """Returns the last seat that was heard of."""
        return self._heard[-1] if self._heard else None

    def wait(self, newer_than: int, timeout_s: float) -> Seat | None:
        """Returns a seat of a later epoch; None if there is none in time."""

        def is_there() -> bool:
            return bool(self._heard) and self._heard[-1].epoch > newer_than

        with self._change:
            return (
                self._heard[-1] if self._change.wait_for(is_there, timeout_s) else None
            )

    def subscribe(self, heard: Callable[[Seat], object]) -> Callable[[], None]:
        """Tells a function of each seat; returns what ends that."""
        self._listeners.append(heard)
        return lambda: self._listeners.remove(heard)

    def end_s(self) -> float:
        """Returns when this worker has to be gone: never."""
        return float("inf")

    def save_order(self) -> None:
        """Returns that no checkpoint is asked for."""

    def is_leaving(self) -> bool:
        """Returns whether this worker was in a world, and is not in the last one."""
        seat = self.latest()
        return seat is not None and self.has_left(seat)

    def has_left(self, seat: Seat) -> bool:
        """Returns whether a seat is that of a worker that has left."""
        return bool(self.steps) and seat.rank < 0

    def flight_record(self) -> None:
        """Returns that no record of collectives is asked for."""

    def report_step(self, step: int, seconds: float) -> None:
        """Keeps a step and its time."""
        del seconds
        self.steps.append((step, time.monotonic()))

    def report_broken(self, epoch: int, reason: str) -> None:
        """Tells the writer of worlds that this one is broken."""
        del epoch
        self._connect().set(f"broken/{self.name}", reason)

    def report_saved(self, *_: Any) -> None:
        """Takes no note."""

    def report_ready(self) -> None:
        """Takes no note."""

    def report_phase(self, phase: str) -> None:
        """Takes no note."""

    def report_times(self, times: object) -> None:
        """Takes no note."""

    def report_end(self, *, is_finished: bool) -> None:
        """Takes no note."""


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
