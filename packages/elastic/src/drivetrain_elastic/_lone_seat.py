"""The world of a worker that was started by itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drivetrain_elastic._seat import Seat

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_elastic._seat import SaveOrder
    from drivetrain_elastic._step_meter import Times

__all__ = ["LoneSeat"]


class LoneSeat:
    """A world of one, which never changes: a script that no agent has started.

    Example:
        >>> LoneSeat().wait(0, 1.0)
        Seat(epoch=1, rank=0, members=('this',), nodes=('here',), broken_epoch=0, unit=1)
    """

    _SEAT = Seat(1, 0, ("this",), ("here",))

    def latest(self) -> Seat:
        """Returns the world."""
        return self._SEAT

    def wait(self, newer_than: int, timeout_s: float) -> Seat | None:
        """Returns the world, once."""
        del timeout_s  # there will be no other one
        return self._SEAT if newer_than < 1 else None

    def subscribe(self, heard: Callable[[Seat], None]) -> Callable[[], None]:
        """Does nothing: there is no change to hear of."""
        del heard
        return lambda: None

    def is_leaving(self) -> bool:
        """Says no."""
        return False

    def end_s(self) -> float:
        """Says that nobody takes it away."""
        return math.inf

    def save_order(self) -> None:
        """Says that nobody asks for a checkpoint."""

    def report_saved(
        self, order: SaveOrder, step: int, seconds: float, failure: str
    ) -> None:
        """Tells nobody."""

    def report_ready(self) -> None:
        """Tells nobody."""

    def report_phase(self, phase: str) -> None:
        """Tells nobody."""

    def report_step(self, step: int, seconds: float) -> None:
        """Tells nobody."""

    def report_times(self, times: Times) -> None:
        """Tells nobody."""

    def flight_record(self) -> None:
        """Says that nobody would read what this worker noted."""

    def report_broken(self, epoch: int, reason: str) -> None:
        """Tells nobody."""

    def report_end(self, *, is_finished: bool) -> None:
        """Tells nobody."""
