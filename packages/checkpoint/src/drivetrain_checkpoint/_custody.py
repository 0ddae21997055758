"""What the daemon knows of the memory of its ranks, and what is still to be done with it.

A save that a rank has published is a ticket, with tasks: to be persisted, to be
replicated. Its generation is free for the next save when no task of it is left.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._native import Progress
from drivetrain_checkpoint._outcomes import Outcomes
from drivetrain_checkpoint._ticket import PERSIST, Ticket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from drivetrain_checkpoint._arena import Arena

__all__ = ["Custody"]


class Custody:
    """Thread-safe; `changed` is notified whenever something changes.

    All methods take the lock themselves.
    """

    def __init__(self) -> None:
        """Knows no memory yet."""
        self.changed = threading.Condition(threading.RLock())
        self.arenas: dict[int, Arena] = {}
        self.outcomes = Outcomes()
        self._tickets: dict[tuple[int, int], Ticket] = {}
        self._seen: dict[int, int] = {}
        self._claims: dict[int, int] = {}
        self._errands = 0

    def take_over(self, rank: int, arena: Arena) -> None:
        """Takes memory that a rank hands over, after what it had before is done with."""
        with self.changed:
            old = self.arenas.get(rank)
            if old is not None:
                if old.is_same(arena):
                    return
                self.scan(rank)
            self.changed.wait_for(lambda: not self._busy(rank))
            self.arenas[rank] = arena
            self._seen[rank] = 0
            self._claims.pop(rank, None)
            for index in (0, 1):
                self._tickets.pop((rank, index), None)
            self.changed.notify_all()

    def give_up(self, ranks: Iterable[int]) -> None:
        """Drops the memory of ranks that nothing is left to be done with."""
        with self.changed:
            for rank in ranks:
                if not self._busy(rank):
                    self.arenas.pop(rank, None)
                    for index in (0, 1):
                        self._tickets.pop((rank, index), None)

    def claim(self, rank: int, *, drop: bool, timeout_s: float) -> dict[str, Any]:
        """Sets the generation aside that the next save is to fill.

        Args:
            rank: The rank.
            drop: Whether a save that nothing was begun with may be given up for it.
            timeout_s: How long to wait.

        Returns:
            The index and the number of the save; which save is dropped, if one is; or
            that all is busy.

        Raises:
            ValueError: The rank has handed over no memory.
        """
        deadline = time.monotonic() + timeout_s
        with self.changed:
            if rank not in self.arenas:
                message = f"rank {rank} has handed over no memory"
                raise ValueError(message)
            while True:
                self.scan(rank)
                if rank in self._claims:  # a copy is under way
                    if not self._wait_until(deadline):
                        return {"busy": True}
                    continue
                sequences = self.arenas[rank].sequences()
                number = max(*sequences, self._seen[rank]) + 1
                older, newer = sorted((0, 1), key=lambda i: sequences[i])
                # The newest save is what a crash would be recovered from; it is only
                # given up if the trainer says so.
                for index in (older, newer) if drop else (older,):
                    ticket = self._tickets.get((rank, index))
                    dropped = None
                    if ticket is not None and ticket.is_busy:
                        if not drop or ticket.running:
                            continue
                        dropped = ticket.save_id
                    self._claims[rank] = index
                    return {"index": index, "sequence": number, "dropped": dropped}
                if not self._wait_until(deadline):
                    return {"busy": True}

    def release(self, rank: int) -> None:
        """Gives a claimed generation back: no save comes."""
        with self.changed:
            self._claims.pop(rank, None)
            self.changed.notify_all()

    def drop(self, save_id: str) -> None:
        """Gives up a save that was not begun with on the rank that wants its memory."""
        with self.changed:
            outcome = self.outcomes.of(save_id)
            outcome.drop()
            outcome.open_tasks.clear()
            for ticket in list(self._tickets.values()):
                if ticket.save_id == save_id:
                    ticket.waiting.clear()
                    for progress in ticket.running.values():
                        progress.stop = 1
            self.changed.notify_all()

    def published(self, rank: int) -> None:
        """Takes note that a rank has published a save."""
        with self.changed:
            self._claims.pop(rank, None)
            self.scan(rank)
            self.changed.notify_all()

    def scan(self, rank: int) -> None:
        """Makes tickets of what a rank has published, whether it said so or not."""
        with self.changed:
            arena = self.arenas[rank]
            if max(arena.sequences()) <= self._seen[rank]:
                return
            for generation in reversed(arena.generations()):
                if generation.sequence <= self._seen[rank]:
                    continue
                self._seen[rank] = generation.sequence
                self._forget(self._tickets.get((rank, generation.index)))
                tasks = set(generation.record["tasks"])
                ticket = Ticket(rank, arena, generation, tasks)
                self._tickets[rank, generation.index] = ticket
                outcome = self.outcomes.of(ticket.save_id)
                if outcome.error or outcome.committed:
                    tasks.discard(PERSIST)
                for task in tasks:
                    outcome.open_tasks.setdefault(task, set()).add(rank)

    def ask_for(self, task: str, rank: int | None = None) -> list[str]:
        """Adds a task to the saves that lie in memory without it; returns their ids."""
        with self.changed:
            found = []
            for key in list(self.arenas):
                self.scan(key)
            for (owner, index), ticket in self._tickets.items():
                outcome = self.outcomes.of(ticket.save_id)
                if rank not in {None, owner} or self._claims.get(owner) == index:
                    continue
                if outcome.error or outcome.committed or task in ticket.running:
                    continue
                if owner not in outcome.told:
                    ticket.waiting.add(task)
                    outcome.open_tasks.setdefault(task, set()).add(owner)
                    found.append(ticket.save_id)
            self.changed.notify_all()
            return found

    def begin(self, rank: int, task: str, timeout_s: float) -> Ticket | None:
        """Returns the oldest save that waits for a task, or None after a while."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while True:
                if rank in self.arenas:
                    self.scan(rank)
                for ticket in self._in_order(rank):
                    if task in ticket.waiting and self._is_whole(ticket):
                        ticket.waiting.discard(task)
                        ticket.running[task] = Progress()
                        return ticket
                left = deadline - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    return None

    def end(self, ticket: Ticket, task: str, error: str = "") -> None:
        """Takes note that a task is done, has failed, or is given up."""
        with self.changed:
            progress = ticket.running.pop(task, None)
            if progress is None:
                return  # it was given up before, and somebody was told so
            progress.stop = 1
            outcome = self.outcomes.of(ticket.save_id)
            outcome.open_tasks.get(task, set()).discard(ticket.rank)
            if task == PERSIST:
                outcome.fail(error)
            else:
                outcome.lost_replicas = outcome.lost_replicas or error
            self.changed.notify_all()

    def told(self, save_id: str, rank: int, entry: Mapping[str, Any]) -> None:
        """Takes note that a rank's part of a save is on storage."""
        with self.changed:
            self.outcomes.of(save_id).told[rank] = dict(entry)
            self.changed.notify_all()

    def failed(self, save_id: str, error: str) -> None:
        """Takes note that a save has failed on some node."""
        with self.changed:
            outcome = self.outcomes.of(save_id)
            outcome.fail(error)
            for ticket in self._tickets.values():
                if ticket.save_id == save_id:
                    ticket.waiting.discard(PERSIST)
                    if PERSIST in ticket.running:
                        ticket.running[PERSIST].stop = 1
            self.changed.notify_all()

    def committed(self, save_id: str) -> None:
        """Takes note that a save is a checkpoint now."""
        with self.changed:
            self.outcomes.of(save_id).committed = True
            self.changed.notify_all()

    def wait(self, save_id: str, timeout_s: float | None) -> dict[str, Any]:
        """Returns what became of a save, as soon as that changes or time is up."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.changed:
            while True:
                answer = self.outcomes.state(save_id)
                left = None if deadline is None else deadline - time.monotonic()
                is_open = answer["state"] in {"pending", "written"}
                if not is_open or (left is not None and left <= 0):
                    return answer
                self.changed.wait(left)

    def is_open(self, save_id: str) -> bool:
        """Whether a rank of this node is still writing a save."""
        with self.changed:
            mine = [t for t in self._tickets.values() if t.save_id == save_id]
            return any(PERSIST in ticket.running for ticket in mine)

    def has(self, rank: int, save_id: str) -> bool:
        """Whether a rank has published a save, here."""
        with self.changed:
            if rank in self.arenas:
                self.scan(rank)
            mine = [t for (r, _), t in self._tickets.items() if r == rank]
            return any(ticket.save_id == save_id for ticket in mine)

    def settle(self, timeout_s: float) -> bool:
        """Waits until nothing is left to be done; returns whether nothing has failed."""
        with self.changed:
            if not self.changed.wait_for(self.is_idle, timeout_s):
                return False
            states = {
                t.save_id: self.outcomes.state(t.save_id)["state"]
                for t in self.tickets()
            }
            return "failed" not in states.values()

    def is_idle(self) -> bool:
        """Whether nothing is left to be done."""
        with self.changed:
            return not self._errands and not any(map(self._busy, self.arenas))

    @contextlib.contextmanager
    def errand(self) -> Iterator[None]:
        """Keeps the daemon from being idle for the time of some work."""
        with self.changed:
            self._errands += 1
        try:
            yield
        finally:
            with self.changed:
                self._errands -= 1
                self.changed.notify_all()

    def tickets(self) -> list[Ticket]:
        """Returns the saves in memory."""
        with self.changed:
            return list(self._tickets.values())

    def _wait_until(self, deadline: float) -> bool:
        """Waits for a change; returns whether there is time left to look again."""
        left = deadline - time.monotonic()
        if left > 0:
            self.changed.wait(min(left, 0.5))
        return left > 0

    def _forget(self, ticket: Ticket | None) -> None:
        """Takes note that a newer save has taken the place of one in memory."""
        if ticket is None:
            return
        outcome = self.outcomes.of(ticket.save_id)
        if ticket.rank not in outcome.told and not outcome.committed:
            outcome.drop()

    def _busy(self, rank: int) -> bool:
        return any(t.is_busy for (r, _), t in self._tickets.items() if r == rank)

    def _in_order(self, rank: int) -> list[Ticket]:
        mine = [t for (r, _), t in self._tickets.items() if r == rank]
        return sorted(mine, key=lambda ticket: ticket.generation.sequence)

    def _is_whole(self, ticket: Ticket) -> bool:
        """Whether the memory is still that of the ticket, and not set aside."""
        generation = ticket.generation
        is_claimed = self._claims.get(ticket.rank) == generation.index
        there = ticket.arena.sequences()[generation.index] == generation.sequence
        if not there:
            ticket.waiting.clear()
        return there and not is_claimed
