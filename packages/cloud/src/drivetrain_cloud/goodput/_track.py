"""The checkpoints that a training has made, and which of them can be loaded."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain_cloud.goodput._profile import CheckpointPlan

# A progress that is a whole number of intervals must not become one less by rounding.
_ROUNDING = 1e-9


class CheckpointTrack:
    """How far a training was, when, and so which checkpoints there are.

    Progress is in seconds of training at full speed.

    Args:
        plan: When checkpoints are made.

    Example:
        >>> from drivetrain_cloud.goodput import CheckpointPlan
        >>> track = CheckpointTrack(CheckpointPlan(interval_s=100.0, durable_s=30.0))
        >>> track.note(0.0, 0.0)
        >>> track.note(450.0, 450.0)
        >>> track.newest(450.0, is_memory_lost=True), track.newest(420.0, is_memory_lost=True)
        (400.0, 300.0)
    """

    def __init__(self, plan: CheckpointPlan) -> None:
        self._plan = plan
        self._points: deque[tuple[float, float]] = deque()
        self._oldest = 0.0

    def note(self, at_s: float, progress_s: float) -> None:
        """Notes how far the training is; between two notes it goes on evenly."""
        self._points.append((at_s, progress_s))
        horizon_s = at_s - self._plan.durable_s
        while len(self._points) > 2 and self._points[1][0] <= horizon_s:
            self._points.popleft()

    def newest(
        self, now_s: float, *, is_memory_lost: bool, before_s: float = float("inf")
    ) -> float:
        """Returns the progress of the newest checkpoint that can be loaded.

        Args:
            now_s: The time.
            is_memory_lost: Whether copies in memory cannot be used.
            before_s: Later progress does not count, since its numbers are wrong.
        """
        durable = self._progress(now_s - self._plan.durable_s)
        stored = _floor(min(durable, before_s), self._plan.interval_s)
        stored = max(stored, min(self._oldest, before_s))
        memory_s = self._plan.memory_interval_s
        if memory_s is None or (is_memory_lost and not self._plan.has_replicas):
            return stored
        return max(stored, _floor(min(self._points[-1][1], before_s), memory_s))

    def roll_back(self, now_s: float, progress_s: float) -> None:
        """Goes on from a checkpoint.

        Args:
            now_s: The time.
            progress_s: What was loaded.
        """
        durable = _floor(
            min(self._progress(now_s - self._plan.durable_s), progress_s),
            self._plan.interval_s,
        )
        self._oldest = max(min(self._oldest, progress_s), durable)
        self._points.clear()
        self._points.append((now_s, progress_s))

    def _progress(self, at_s: float) -> float:
        """Returns how far the training was at a time."""
        first_s, first = self._points[0]
        if at_s < first_s:
            return min(self._oldest, first)
        before_s, before = first_s, first
        for point_s, point in self._points:
            if point_s > at_s:
                share = (at_s - before_s) / (point_s - before_s)
                return before + share * (point - before)
            before_s, before = point_s, point
        return before


def _floor(progress_s: float, interval_s: float) -> float:
    return int(progress_s / interval_s + _ROUNDING) * interval_s
