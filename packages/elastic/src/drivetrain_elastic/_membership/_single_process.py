"""Membership of a process that no agent has started: a world of one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drivetrain_elastic._membership._rank_assignment import (
    MembershipSource,
    RankAssignment,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class SingleProcessMembership(MembershipSource):
    """The only rank of a script that no agent has started: rank 0 of 1, in each world.

    Example:
        >>> SingleProcessMembership().wait(0, 1.0)
        RankAssignment(epoch=1, rank=0, members=('this',), nodes=('here',),
        broken_epoch=0, unit=1)
    """

    def __init__(self) -> None:
        self._assignment = RankAssignment(1, 0, ("this",), ("here",))

    def latest(self) -> RankAssignment:
        """Returns the assignment."""
        return self._assignment

    def wait(self, newer_than: int, timeout_s: float) -> RankAssignment | None:
        """Returns the assignment, once for each world that was broken."""
        del timeout_s  # there will be no other one
        return self._assignment if newer_than < self._assignment.epoch else None

    def report_broken(self, epoch: int, reason: str) -> None:
        """Gives the place in a world again, since nobody is lost: a step has failed."""
        del reason
        self._assignment = self._assignment._replace(epoch=epoch + 1)

    def subscribe(self, heard: Callable[[RankAssignment], None]) -> Callable[[], None]:
        """Does nothing: there is no change to hear of."""
        del heard
        return lambda: None

    def is_leaving(self) -> bool:
        """Says no."""
        return False

    def end_s(self) -> float:
        """Says that nobody takes it away."""
        return math.inf
