"""Reference trial: the baseline beside the trials, to see how fast the machine is now.

Trials run minutes apart, and a machine's speed changes in that time, with its clock and
with what else runs on it. Between the turns of a trial the baseline takes a few steps;
what it takes longer than at first, the plan is given back.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from drivetrain_search.process.trial import Failure

if TYPE_CHECKING:
    from drivetrain_core import Measurement
    from drivetrain_search.process.trial import Session
    from drivetrain_search.stopping import Turn

# A few steps of the same plan differ by this much on a machine at rest.
_STEADY = 0.03
_MOST = 2.0
_PART = 2
_FEW = 2


class ReferenceTrial:
    """The baseline's session, asked again and again.

    Args:
        session: The baseline, built and warm.
        first: What it measured at first.
    """

    def __init__(self, session: Session, first: Measurement) -> None:
        """Keeps both."""
        self._session: Session | None = session
        self._first_s = first.quiet_step_time_s

    def slowdown_now(self) -> float:
        """Returns by what factor a step takes longer than in the baseline's trial."""
        if self._session is None:
            return 1.0
        try:
            now = self._session.measure(_FEW, 0.0)
        except Failure:
            self._session = None
            return 1.0
        return max(1.0, now.quiet_step_time_s / self._first_s)

    def speed_now(self, turn: Turn) -> float:
        """Returns the machine's speed over that of the baseline's trial.

        Within what a machine at rest shows it is 1, and so it is when the baseline's
        processes are gone.
        """
        if self._session is None:
            return 1.0
        try:
            now = self._session.measure(
                math.ceil(turn.steps / _PART), turn.seconds / _PART
            )
        except Failure:
            self._session = None
            return 1.0
        ratio = self._first_s / now.quiet_step_time_s
        if abs(ratio - 1.0) <= _STEADY:
            return 1.0
        return min(max(ratio, 1.0 / _MOST), _MOST)


def corrected(measurement: Measurement, speed: float) -> Measurement:
    """Returns a measurement as a machine of speed 1 would have shown it.

    Example:
        >>> from drivetrain_core import Measurement
        >>> slow = Measurement(step_times_s=(2.0, 4.0), samples_per_step=1)
        >>> corrected(slow, 0.5).step_times_s
        (1.0, 2.0)
    """
    times = tuple(time * speed for time in measurement.step_times_s)
    return dataclasses.replace(measurement, step_times_s=times)
