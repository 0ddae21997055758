"""The time that the end of a search is expected to take, so that it is kept for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.search.shares import steps_within

if TYPE_CHECKING:
    from drivetrain_core._measurement import Measurement

__all__ = [
    "MIN_SECONDS",
    "TURNS",
    "check_seconds",
    "final_steps",
    "set_seconds",
    "setup_again",
    "warm_steps",
]

TURNS = 2
"""How often each plan of a final's set has its turn."""
MIN_SECONDS = 0.5
"""Seconds of a turn at least."""

# Of what a plan's first set-up took beyond the baseline's, this part is taken by each
# later one: what was compiled lies in a cache, but is traced and loaded again.
_AGAIN = 0.2
_SLACK = 1.25
_LEAST_STEPS, _MOST_STEPS = 2, 6
_WARM_S, _MOST_WARM = 0.3, 3


def final_steps(step_s: float) -> int:
    """Returns the steps of a turn of the final at least.

    Example:
        >>> final_steps(0.01), final_steps(0.2), final_steps(3.0)
        (6, 3, 2)
    """
    return steps_within(step_s, MIN_SECONDS, least=_LEAST_STEPS, most=_MOST_STEPS)


def warm_steps(step_s: float) -> int:
    """Returns the steps before those that are timed, where a program has not run yet.

    Example:
        >>> warm_steps(0.01), warm_steps(0.7)
        (3, 1)
    """
    return steps_within(step_s, _WARM_S, least=1, most=_MOST_WARM)


def set_seconds(baseline: Measurement, best: Measurement, finalists: int) -> float:
    """Returns what the baseline and so many plans like the best take in turns.

    Example:
        >>> from drivetrain_core import Measurement
        >>> plan = Measurement(step_times_s=(0.1,), samples_per_step=1, setup_s=2.0)
        >>> round(set_seconds(plan, plan, 3), 1)
        15.2
    """
    slower = max(baseline.step_time_s, best.step_time_s)
    turns = TURNS * max(final_steps(slower) * slower, MIN_SECONDS)
    setups = baseline.setup_s + finalists * setup_again(baseline, best)
    return _SLACK * setups + (1 + finalists) * (turns + warm_steps(slower) * slower)


def check_seconds(
    baseline: Measurement, best: Measurement, structure_s: float | None, passes: int
) -> float:
    """Returns what the thorough check of the best plan takes.

    It looks at the plan, and at what is left of it without low precision.

    Args:
        baseline: The program as written.
        best: The plan, which ran before.
        structure_s: What the set-up of the plan without low precision takes; None if
            that need not be looked at any more.
        passes: The passes of both looks together.

    Example:
        >>> from drivetrain_core import Measurement
        >>> plan = Measurement(step_times_s=(0.1,), samples_per_step=1, setup_s=2.0)
        >>> check_seconds(plan, plan, 30.0, 20) - check_seconds(plan, plan, None, 20)
        37.5
        >>> waits = Measurement(step_times_s=(9.0,), samples_per_step=1, data_share=1.0)
        >>> check_seconds(waits, waits, None, 20)
        0.0
    """
    if not passes:
        return 0.0
    # The batches are kept: nothing waits for them.
    slower = max(baseline, best, key=lambda measured: measured.step_time_s)
    computing_s = slower.step_time_s * (1.0 - slower.data_share)
    setups = (structure_s or 0.0) + setup_again(baseline, best)
    return _SLACK * (setups + passes * computing_s)


def setup_again(baseline: Measurement, best: Measurement) -> float:
    """Returns what the set-up of a plan takes that ran before."""
    return baseline.setup_s + _AGAIN * max(0.0, best.setup_s - baseline.setup_s)
