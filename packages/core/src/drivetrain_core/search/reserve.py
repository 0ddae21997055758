"""The time that the end of a search is expected to take, so that it is kept for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain_core._measurement import Measurement

__all__ = ["MIN_SECONDS", "MIN_STEPS", "TURNS", "check_seconds", "set_seconds"]

TURNS = 2
"""How often each plan of a final's set has its turn."""
MIN_STEPS = 6
"""Steps of a turn at least."""
MIN_SECONDS = 0.5
"""Seconds of a turn at least."""

# Of what a plan's first set-up took beyond the baseline's, this part is taken by each
# later one: what was compiled lies in a cache, but is traced and loaded again.
_AGAIN = 0.2
_SLACK = 1.25
_CHECK_STEPS = 40


def set_seconds(baseline: Measurement, best: Measurement, finalists: int) -> float:
    """Returns what the baseline and so many plans like the best take in turns.

    Example:
        >>> from drivetrain_core import Measurement
        >>> plan = Measurement(step_times_s=(0.1,), samples_per_step=1, setup_s=2.0)
        >>> round(set_seconds(plan, plan, 3), 1)
        14.8
    """
    slower = max(baseline.step_time_s, best.step_time_s)
    turns = TURNS * max(MIN_STEPS * slower, MIN_SECONDS)
    setups = baseline.setup_s + finalists * _again(baseline, best)
    return _SLACK * setups + (1 + finalists) * turns


def check_seconds(
    baseline: Measurement, best: Measurement, structure_s: float
) -> float:
    """Returns what the thorough check of the best plan takes.

    It looks at the plan, and at what is left of it without low precision.

    Args:
        baseline: The program as written.
        best: The plan, which ran before.
        structure_s: What the set-up of the plan without low precision takes, if that is
            still to be looked at.

    Example:
        >>> from drivetrain_core import Measurement
        >>> plan = Measurement(step_times_s=(0.1,), samples_per_step=1, setup_s=2.0)
        >>> check_seconds(plan, plan, 30.0) - check_seconds(plan, plan, 0.0)
        37.5
        >>> waits = Measurement(step_times_s=(9.0,), samples_per_step=1, data_share=1.0)
        >>> check_seconds(waits, waits, 0.0)
        0.0
    """
    # The batches are kept: nothing waits for them.
    slower = max(baseline, best, key=lambda measured: measured.step_time_s)
    computing_s = slower.step_time_s * (1.0 - slower.data_share)
    setups = structure_s + _again(baseline, best)
    return _SLACK * setups + _CHECK_STEPS * computing_s


def _again(baseline: Measurement, best: Measurement) -> float:
    return baseline.setup_s + _AGAIN * max(0.0, best.setup_s - baseline.setup_s)
