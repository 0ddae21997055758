"""Time budget of the end of a search: what it is expected to take is kept for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drivetrain_search.phase_shares import steps_within

if TYPE_CHECKING:
    from drivetrain_core import Measurement

TURNS = 2
"""How often each plan of a final's set has its turn."""
MIN_SECONDS = 0.5
"""Seconds of a turn at least."""
LEAST_STEPS = 1
"""Steps of a turn at least."""

# Of what a plan's first set-up took beyond the baseline's, this part is taken by each
# later one: what was compiled lies in a cache, but is traced and loaded again.
_AGAIN = 0.2
_SLACK = 1.25
_MOST_STEPS = 20
_WARM_S, _MOST_WARM = 0.3, 3
# Half the interval of a median is this part of the steps' noise, over the root of their
# number, and shall be this part of the gain.
_MEDIAN, _SHOWS = 1.96 * 1.25, 0.5
# Usual sets, and what a turn may take of the budget.
_SETS, _TURN_PART = 2, 0.02


def final_steps(step_s: float, noise: float, gain: float, budget_s: float) -> int:
    """Returns the steps of a turn of the final at least: as many as show the gain.

    Args:
        step_s: What a step takes.
        noise: By what part steps differ.
        gain: The speed-up that the trials saw, less one.
        budget_s: That of the search.

    Example:
        >>> final_steps(0.1, 0.01, 0.5, 180.0), final_steps(0.1, 0.15, 0.2, 180.0)
        (1, 9)
        >>> final_steps(1.0, 0.15, 0.2, 180.0), final_steps(9.0, 0.15, 0.2, 180.0)
        (4, 1)
    """
    telling = _MEDIAN * noise / max(_SHOWS * math.log1p(gain), 1e-3)
    needed = math.ceil(2.0 * telling**2 / (_SETS * TURNS))
    fits = steps_within(
        step_s, _TURN_PART * budget_s, least=LEAST_STEPS, most=_MOST_STEPS
    )
    return max(LEAST_STEPS, min(needed, fits))


def warm_steps(step_s: float) -> int:
    """Returns the steps before those that are timed, where a program has not run yet.

    Example:
        >>> warm_steps(0.01), warm_steps(0.7)
        (3, 1)
    """
    return steps_within(step_s, _WARM_S, least=1, most=_MOST_WARM)


def set_seconds(
    baseline: Measurement, best: Measurement, finalists: int, steps: int
) -> float:
    """Returns what the baseline and so many plans like the best take in turns.

    Args:
        baseline: The program as written.
        best: The best plan.
        finalists: How many plans there are beside the baseline.
        steps: Steps of a turn at least.

    Example:
        >>> from drivetrain_core import Measurement
        >>> plan = Measurement(step_times_s=(0.1,), samples_per_step=1, setup_s=2.0)
        >>> round(set_seconds(plan, plan, 3, 4), 1)
        15.2
    """
    slower = max(baseline.step_time_s, best.step_time_s)
    turns = TURNS * max(steps * slower, MIN_SECONDS)
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
