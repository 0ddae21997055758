"""How far a training is: what counts, what is durable, and what is made again."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A checkpoint, and when it is durable."""

    begun_s: float
    durable_s: float
    samples: float
    trained_s: float


class Progress:
    """The progress of a training between events; stretches are computed in one go.

    Args:
        interval_s: Training time between two periodic checkpoints; infinite for none.
        stall_s: How long training stands still for one.
        save_s: How long one takes until it is durable; not longer than the interval.
        target: Samples after which it is done.

    Example:
        >>> progress = Progress(interval_s=100.0, stall_s=1.0, save_s=5.0)
        >>> progress.begin_world(0.0, nodes=2, samples_per_s=10.0, step_s=1.0, stall_s=0.0)
        >>> progress.advance(303.0)
        >>> progress.samples, progress.trained_s, progress.stalled_s
        (3000.0, 600.0, 6.0)
        >>> progress.roll_back()
        >>> progress.samples, progress.repeated_s
        (2000.0, 200.0)
    """

    def __init__(
        self,
        *,
        interval_s: float,
        stall_s: float,
        save_s: float,
        target: float = math.inf,
    ) -> None:
        self._interval_s, self._stall_s = max(interval_s, save_s), stall_s
        self._save_s, self._target = save_s, target
        self.now_s = 0.0
        self.samples = 0.0
        # All of these are seconds of nodes.
        self.trained_s = self.repeated_s = self.stalled_s = 0.0
        self.done_s: float | None = None
        self._nodes, self._rate, self._step_s = 0, 0.0, 1.0
        self._stalled_until_s = 0.0
        self._since_save_s = self._in_world_s = 0.0
        self._durable = _Snapshot(-math.inf, -math.inf, 0.0, 0.0)
        self._pending: list[_Snapshot] = []
        self._ordered: _Snapshot | None = None

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint that was asked for is not durable yet."""
        return self._ordered is not None

    @property
    def saved_s(self) -> float | None:
        """Returns when the newest durable checkpoint was begun; None without one."""
        begun_s = self._durable.begun_s
        return begun_s if begun_s >= 0 else None

    def begin_world(
        self,
        now_s: float,
        *,
        nodes: int,
        samples_per_s: float,
        step_s: float,
        stall_s: float,
    ) -> None:
        """Trains on with other nodes.

        Args:
            now_s: The time; `advance` has been called for it.
            nodes: How many train.
            samples_per_s: How fast they are.
            step_s: How long a step of theirs takes.
            stall_s: How long it takes until they train.
        """
        self._nodes, self._rate, self._step_s = nodes, samples_per_s, step_s
        self._stalled_until_s = now_s + stall_s
        self._in_world_s = 0.0

    def end_world(self) -> None:
        """Stops at the end of a step; nobody trains until `begin_world`."""
        self._nodes, self._rate = 0, 0.0

    def lose_step(self) -> None:
        """Loses the step that was being made, and checkpoints that are not durable."""
        since_s = (self.trained_s - self._durable.trained_s) / max(self._nodes, 1)
        # What is durable is not lost; it was written at the end of a step.
        lost_s = min(self._in_world_s % self._step_s, since_s)
        self._in_world_s -= lost_s
        self.samples -= lost_s * self._rate
        self.trained_s -= lost_s * self._nodes
        self.repeated_s += lost_s * self._nodes
        self._pending.clear()
        self._ordered = None

    def roll_back(self) -> None:
        """Goes back to the newest durable checkpoint: what came after is made again."""
        self._pending.clear()
        self._ordered = None
        self.samples = self._durable.samples
        self.repeated_s += self.trained_s - self._durable.trained_s
        self.trained_s = self._durable.trained_s
        self._since_save_s = 0.0

    def save(self, now_s: float) -> float:
        """Begins a checkpoint that was asked for; returns when it is durable."""
        durable_s = now_s + self._step_s + self._save_s
        self._ordered = _Snapshot(now_s, durable_s, self.samples, self.trained_s)
        self._pending.append(self._ordered)
        self._stalled_until_s = max(self._stalled_until_s, now_s) + self._stall_s
        self._since_save_s = 0.0
        return durable_s

    def advance(self, to_s: float) -> None:
        """Lets time go by, until training is done at most.

        Args:
            to_s: Until when.
        """
        if self._nodes and self.done_s is None:
            stalled_s = min(
                max(self._stalled_until_s - self.now_s, 0.0), to_s - self.now_s
            )
            self.stalled_s += stalled_s * self._nodes
            begin_s = self.now_s + stalled_s
            if begin_s < to_s:
                to_s = self._train(begin_s, to_s)
        self.now_s = to_s
        while self._pending and self._pending[0].durable_s <= to_s:
            self._durable = self._pending.pop(0)
            if self._durable is self._ordered:
                self._ordered = None

    def _train(self, begin_s: float, to_s: float) -> float:
        """Trains for a stretch, with the periodic checkpoints in it."""
        first_s = self._interval_s - self._since_save_s
        wanted_s = (self._target - self.samples) / self._rate
        num_saves = (
            max(0, math.ceil((wanted_s - first_s) / self._interval_s))
            if (math.isfinite(wanted_s) and math.isfinite(first_s))
            else 0
        )
        end_s = begin_s + wanted_s + num_saves * self._stall_s
        if end_s <= to_s:
            to_s = self.done_s = end_s
        stretch_s = to_s - begin_s
        if stretch_s < first_s:
            self._since_save_s += stretch_s
            self._count(stretch_s, 0.0)
            return to_s
        cycle_s = self._interval_s + self._stall_s
        whole, rest_s = divmod(stretch_s - first_s, cycle_s)
        stalled_s = min(rest_s, self._stall_s)
        self._since_save_s = rest_s - stalled_s
        self._count(
            first_s + whole * self._interval_s + self._since_save_s,
            whole * self._stall_s + stalled_s,
        )
        self._stalled_until_s = to_s + self._stall_s - stalled_s
        # Earlier ones than these two are durable by now, and replaced.
        for back in (1, 0) if whole else (0,):
            behind_s = self._since_save_s + back * self._interval_s
            begun_s = to_s - rest_s - back * cycle_s
            self._pending.append(
                _Snapshot(
                    begun_s,
                    begun_s + self._save_s,
                    self.samples - behind_s * self._rate,
                    self.trained_s - behind_s * self._nodes,
                )
            )
        return to_s

    def _count(self, trained_s: float, stalled_s: float) -> None:
        self.samples += trained_s * self._rate
        self.trained_s += trained_s * self._nodes
        self.stalled_s += stalled_s * self._nodes
        self._in_world_s += trained_s
