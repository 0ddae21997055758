"""What a master must hear of workers that have ended, for as long as it may not know it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_DIAGNOSED = 16
_FINAL = {pb.WorkerReport.FINISHED, pb.WorkerReport.FAILED, pb.WorkerReport.LEFT}


class FinalReports:
    """Keeps reports of workers that have ended; used from one event loop.

    A report that was sent may be lost with the stream, or with the master that has heard it.
    A world is told when it is durable: one without the worker says that its end is known.
    No world says that one has finished, or that a place was given up; these are few, and
    are kept for good. So are the last diagnoses, which no world tells of either.
    """

    def __init__(self) -> None:
        self._reports: dict[str, pb.WorkerReport] = {}
        self._diagnosed: deque[str] = deque(maxlen=_MOST_DIAGNOSED)

    def add(self, reports: Iterable[pb.WorkerReport]) -> None:
        """Takes those of workers that have ended, out of all that are sent."""
        for report in reports:
            if report.state in _FINAL:
                self._reports[report.name] = report
            if report.HasField("failure"):
                self._diagnosed.append(report.name)

    def settle(self, world: pb.World) -> None:
        """Forgets the ends that a world takes account of."""
        members = {one.name for one in world.members}
        self._reports = {
            name: report
            for name, report in self._reports.items()
            if name in members
            or report.given_up
            or report.state == pb.WorkerReport.FINISHED
            or name in self._diagnosed
        }

    def all(self) -> list[pb.WorkerReport]:
        """Returns those that are to be repeated."""
        return list(self._reports.values())
