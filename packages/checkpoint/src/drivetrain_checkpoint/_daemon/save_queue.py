"""Queue of the daemon: saves in the memory of its ranks, with the tasks left for each.

A save that a rank has published is pending, with tasks: to be persisted, to be
replicated. Its generation is free for the next save when no task of it is left.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._daemon.pending_save import PERSIST, PendingSave
from drivetrain_checkpoint._daemon.save_results import SaveResults
from drivetrain_checkpoint._native import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from drivetrain_checkpoint._arena import Arena


_CLEARED_S = 2.0


class SaveQueue:
    """The saves that lie in memory, by rank and generation.

    Thread-safe: all methods take the lock themselves, and `changed` is notified whenever
    something changes.

    Attributes:
        changed: The lock, and what waits for a change.
        arenas: The memory of each rank.
        results: What became of the saves.
    """

    def __init__(self) -> None:
        """Has no memory yet."""
        self.changed = threading.Condition(threading.RLock())
        self.arenas: dict[int, Arena] = {}
        self.results = SaveResults()
        self._pending: dict[tuple[int, int], PendingSave] = {}
        self._seen: dict[int, int] = {}
        self._claims: dict[int, int] = {}
        self._busy_with = 0

    def set_arena(self, rank: int, arena: Arena) -> None:
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
            self._forget_removed()
            self.changed.notify_all()

    def drop_arenas(self, ranks: Iterable[int]) -> None:
        """Drops the memory of ranks that nothing is left to be done with."""
        with self.changed:
            for rank in ranks:
                if not self._busy(rank):
                    self.arenas.pop(rank, None)
            self._forget_removed()

    def claim(
        self,
        rank: int,
        *,
        drop: bool,
        timeout_s: float,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> dict[str, Any]:
        """Sets the generation aside that the next save is to fill.

        Args:
            rank: The rank.
            drop: Whether a save that nothing was begun with may be given up for it.
            timeout_s: How long to wait.
            is_wanted: Whether who asks is still the one that saves the rank.

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
                sequences = self.arenas[rank].sequences()
                number = max(*sequences, self._seen[rank]) + 1
                older, newer = sorted((0, 1), key=lambda i: sequences[i])
                # The newest save is what a crash would be recovered from; it is only
                # given up if the trainer says so.
                candidates: list[int] = [older, newer] if drop else [older]
                # A copy is under way; or the trainer asks anew, on another connection.
                if rank in self._claims or not is_wanted():
                    candidates = []
                for index in candidates:
                    pending = self._pending.get((rank, index))
                    dropped = None
                    if pending is not None and pending.is_busy:
                        if not drop or pending.running:
                            continue
                        dropped = pending.save_id
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
            result = self.results.of(save_id)
            result.drop()
            result.open_tasks.clear()
            for part in self._parts(save_id):
                part.waiting.clear()
                for progress in part.running.values():
                    progress.stop = 1
            self.changed.notify_all()

    def published(self, rank: int) -> None:
        """Takes note that a rank has published a save."""
        with self.changed:
            self._claims.pop(rank, None)
            self.scan(rank)
            self.changed.notify_all()

    def scan(self, rank: int) -> None:
        """Queues what a rank has published, whether it said so or not."""
        with self.changed:
            arena = self.arenas[rank]
            if max(arena.sequences()) <= self._seen[rank]:
                return
            for generation in reversed(arena.generations()):
                if generation.sequence <= self._seen[rank]:
                    continue
                self._seen[rank] = generation.sequence
                self._replace(self._pending.get((rank, generation.index)))
                tasks = set(generation.record["tasks"])
                pending = PendingSave(rank, arena, generation, tasks)
                self._pending[rank, generation.index] = pending
                result = self.results.of(pending.save_id)
                if result.error or result.committed:
                    tasks.discard(PERSIST)
                for task in tasks:
                    result.open_tasks.setdefault(task, set()).add(rank)

    def add_task(self, task: str, rank: int | None = None) -> list[str]:
        """Adds a task to the saves that lie in memory without it; returns their ids."""
        with self.changed:
            # What a save that has failed has left is deleted before it is tried anew.
            self.changed.wait_for(self.results.are_failures_over, _CLEARED_S)
            found = []
            for key in list(self.arenas):
                self.scan(key)
            for (owner, index), pending in self._pending.items():
                result = self.results.of(pending.save_id)
                if rank not in {None, owner} or self._claims.get(owner) == index:
                    continue
                if result.committed or task in pending.running:
                    continue
                if result.error:
                    found += [pending.save_id] * self._retry(pending, task)
                elif owner not in result.reported:
                    pending.waiting.add(task)
                    result.open_tasks.setdefault(task, set()).add(owner)
                    found.append(pending.save_id)
            self.changed.notify_all()
            return found

    def retry(self, after_s: float) -> None:
        """Tries saves anew that have failed so long ago, if memory still holds them."""
        with self.changed:
            for pending in self._pending.values():
                result = self.results.of(pending.save_id)
                failed_s = time.monotonic() - result.failed_at
                was_wanted = PERSIST in result.open_tasks
                if result.error and was_wanted and failed_s >= after_s:
                    self._retry(pending, PERSIST)

    def _retry(self, pending: PendingSave, task: str) -> bool:
        """Lets all ranks here write a save that has failed; returns whether they will."""
        save_id, result = pending.save_id, self.results.of(pending.save_id)
        # A rank whose memory is set aside for its next save has no part of this one left.
        parts = self._parts(save_id)
        is_there = all(map(self._is_whole, parts))
        if task != PERSIST or self.is_open(save_id) or not is_there:
            return False
        if result.retry():
            for part in parts:
                part.waiting.add(PERSIST)
                result.open_tasks.setdefault(PERSIST, set()).add(part.rank)
            self.changed.notify_all()
        return not result.error

    @contextlib.contextmanager
    def attempt(self, save_id: str) -> Iterator[None]:
        """Counts a thread that writes a save."""
        with self.changed:
            result = self.results.of(save_id)
            result.attempts += 1
        try:
            yield
        finally:
            with self.changed:
                result.attempts -= 1
                self.changed.notify_all()

    def begin(self, rank: int, task: str, timeout_s: float) -> PendingSave | None:
        """Returns the oldest save that waits for a task, or None after a while."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while True:
                if rank in self.arenas:
                    self.scan(rank)
                for pending in self._in_order(rank):
                    if task in pending.waiting and self._is_whole(pending):
                        pending.waiting.discard(task)
                        pending.running[task] = Progress()
                        return pending
                left = deadline - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    return None

    def end(self, pending: PendingSave, task: str, error: str = "") -> None:
        """Takes note that a task is done, has failed, or is given up."""
        with self.changed:
            progress = pending.running.pop(task, None)
            if progress is None:
                return  # it was given up before, and somebody was told so
            progress.stop = 1
            result = self.results.of(pending.save_id)
            result.open_tasks.get(task, set()).discard(pending.rank)
            if task == PERSIST:
                result.fail(error)
            else:
                result.lost_replicas = result.lost_replicas or error
            self.changed.notify_all()

    def report(self, save_id: str, rank: int, entry: Mapping[str, Any]) -> None:
        """Takes note that a rank's part of a save is on storage."""
        with self.changed:
            self.results.of(save_id).reported[rank] = dict(entry)
            self.changed.notify_all()

    def failed(self, save_id: str, error: str) -> None:
        """Takes note that a save has failed on some node."""
        with self.changed:
            self.results.of(save_id).fail(error)
            for part in self._parts(save_id):
                part.waiting.discard(PERSIST)
                if PERSIST in part.running:
                    part.running[PERSIST].stop = 1
            self.changed.notify_all()

    def committed(self, save_id: str) -> None:
        """Takes note that a save is a checkpoint now."""
        with self.changed:
            self.results.of(save_id).committed = True
            self.changed.notify_all()

    def wait(self, save_id: str, timeout_s: float | None) -> dict[str, Any]:
        """Returns what became of a save, as soon as that changes or time is up."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.changed:
            while True:
                answer = self.results.state(save_id)
                left = None if deadline is None else deadline - time.monotonic()
                is_open = answer["state"] in {"pending", "written"}
                if not is_open or (left is not None and left <= 0):
                    return answer
                self.changed.wait(left)

    def is_open(self, save_id: str) -> bool:
        """Whether a rank of this node is still writing a save."""
        with self.changed:
            return any(PERSIST in part.running for part in self._parts(save_id))

    def has(self, rank: int, save_id: str) -> bool:
        """Whether a rank has published a save, here."""
        with self.changed:
            if rank in self.arenas:
                self.scan(rank)
            return any(part.rank == rank for part in self._parts(save_id))

    def ask_for(self, rank: int, save_id: str) -> bool | None:
        """Lets a rank's part of a save be written, as another rank waits for it.

        Returns:
            Whether it may come yet; None if nothing is known of it here. Of a rank that
            has published a later save none will: ids of saves grow.
        """
        with self.changed:
            if rank in self.arenas:
                self.scan(rank)
            mine = [part for part in self._parts(save_id) if part.rank == rank]
            if not mine:
                ours = [p.save_id for p in self._pending.values() if p.rank == rank]
                return False if max(ours, default="") > save_id else None
            result = self.results.of(save_id)
            is_written = rank in result.reported or result.committed
            if is_written or PERSIST in mine[0].running:
                return True
            if not self._is_whole(mine[0]):
                return False
            if result.error:
                return self._retry(mine[0], PERSIST)
            mine[0].waiting.add(PERSIST)
            result.open_tasks.setdefault(PERSIST, set()).add(rank)
            self.changed.notify_all()
            return True

    def wait_until_idle(self, timeout_s: float | None) -> bool:
        """Waits until nothing is left to be done; returns whether nothing has failed."""
        with self.changed:
            if not self.changed.wait_for(self.is_idle, timeout_s):
                return False
            saves = {pending.save_id for pending in self._pending.values()}
            return all(self.results.state(i)["state"] != "failed" for i in saves)

    def is_idle(self) -> bool:
        """Whether nothing is left to be done."""
        with self.changed:
            return not self._busy_with and not any(map(self._busy, self.arenas))

    @contextlib.contextmanager
    def keep_busy(self) -> Iterator[None]:
        """Keeps the daemon from being idle for the time of some work."""
        with self.changed:
            self._busy_with += 1
        try:
            yield
        finally:
            with self.changed:
                self._busy_with -= 1
                self.changed.notify_all()

    def pending_saves(self) -> list[PendingSave]:
        """Returns the saves in memory."""
        with self.changed:
            return list(self._pending.values())

    def _wait_until(self, deadline: float) -> bool:
        """Waits for a change; returns whether there is time left to look again."""
        left = deadline - time.monotonic()
        if left > 0:
            self.changed.wait(min(left, 0.5))
        return left > 0

    def _replace(self, pending: PendingSave | None) -> None:
        """Takes note that a newer save has taken the place of one in memory."""
        if pending is None:
            return
        result = self.results.of(pending.save_id)
        if pending.rank not in result.reported and not result.committed:
            result.drop()

    def _forget_removed(self) -> None:
        """Forgets the saves that lay in memory that is no longer held."""
        self._pending = {
            key: pending
            for key, pending in self._pending.items()
            if self.arenas.get(pending.rank) is pending.arena
        }

    def _busy(self, rank: int) -> bool:
        return any(pending.is_busy for pending in self._in_order(rank))

    def _parts(self, save_id: str) -> list[PendingSave]:
        """Returns the parts of a save that ranks of this node have published."""
        return [p for p in self._pending.values() if p.save_id == save_id]

    def _in_order(self, rank: int) -> list[PendingSave]:
        """Returns the saves of a rank, the oldest first."""
        mine = [p for p in self._pending.values() if p.rank == rank]
        return sorted(mine, key=lambda pending: pending.generation.sequence)

    def _is_whole(self, pending: PendingSave) -> bool:
        """Whether the memory still holds the save, and is not set aside."""
        generation = pending.generation
        is_claimed = self._claims.get(pending.rank) == generation.index
        there = pending.arena.has(generation)
        if not there:
            pending.waiting.clear()
            self._replace(pending)
        return there and not is_claimed
