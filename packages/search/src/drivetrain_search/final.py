"""Final, a search's last runs: the finalists and the baseline in turns.

Single trials run minutes apart; a machine changes in that time. In the final, baseline
and finalists take turns of some steps each, so that a slow minute hits all, and the gain
gets an interval.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core.objective import Objective, throughput
from drivetrain_search.score import score_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core import Choice, Measurement
    from drivetrain_search.process.trial import Session, TrialRunner

_RESAMPLES = 1000
# Of Student's t, for an interval of 95% of the mean of three values to seven, and more. Of
# two it would be 12.7, which says nothing: these are extended to three times their distance.
_STUDENT = (3.0, 4.303, 3.182, 2.776, 2.571, 2.447)
_FITS = 0.85


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Baseline and plan, measured in turns.

    Args:
        baseline: All steps of the baseline.
        plan: All steps of the plan.
        speedup: The ratio of the median steps.
        low: The lower end of its 95% interval.
        high: The upper end.
    """

    baseline: Measurement
    plan: Measurement
    speedup: float
    low: float
    high: float


def run_in_turns(
    runner: TrialRunner,
    plans: Sequence[tuple[Choice, ...]],
    *,
    turns: int,
    min_steps: int,
    min_seconds: float,
    deadline: float,
    together: bool,
) -> list[Measurement]:
    """Runs plans in turns and returns all steps of each.

    Args:
        runner: Starts the processes.
        plans: The plans, the baseline first.
        turns: How often each runs.
        min_steps: Steps of a turn at least.
        min_seconds: Seconds of a turn at least.
        deadline: When to give up, in `time.monotonic` seconds.
        together: Whether all fit into the device's memory at once; if not, each turn
            gets fresh processes.

    Raises:
        Failure: One of them hung, crashed, ran out of memory, or raised.
    """
    parts: list[list[Measurement]] = [[] for _ in plans]

    def opened(index: int) -> AbstractContextManager[Session]:
        return runner.open(plans[index], look=None, deadline=deadline)

    with ExitStack() as stack:
        order = list(range(len(plans)))
        sessions = [stack.enter_context(opened(i)) for i in order if together]
        for turn in range(turns):
            # A-B-B-A: a steady drift of the machine's speed cancels out.
            for index in order if turn % 2 == 0 else reversed(order):
                if together:
                    measured = sessions[index].measure(min_steps, min_seconds)
                else:
                    with opened(index) as fresh:
                        measured = fresh.measure(min_steps, min_seconds)
                parts[index].append(measured)
    return [merge(mine) for mine in parts]


def compare(
    baseline: Measurement, plan: Measurement, objective: Objective = throughput
) -> Comparison:
    """Returns by how much a plan beats the baseline, of turns in one run.

    Args:
        baseline: All steps of the baseline.
        plan: All steps of the plan.
        objective: What is maximised; the speed-up is the ratio of its values.
    """
    low, high = speedup_interval(baseline, plan, objective)
    return Comparison(
        baseline=baseline,
        plan=plan,
        speedup=_median_score(objective, plan) / _median_score(objective, baseline),
        low=low,
        high=high,
    )


def compare_sets(
    sets: Sequence[tuple[Measurement, Measurement]], objective: Objective = throughput
) -> Comparison:
    """Returns by how much a plan beats the baseline, of turns in several sets of processes.

    Two processes of one plan differ for as long as they live, by how their memory lies.
    What sets differ by is therefore part of the interval: steps of one set tell nothing
    of it.

    Args:
        sets: What the baseline and the plan measured in each.
        objective: What is maximised.
    """
    whole = compare(
        merge([base for base, _ in sets]), merge([plan for _, plan in sets]), objective
    )
    gains = [compare(base, plan, objective).speedup for base, plan in sets]
    low, high = interval_of_sets(gains)
    return dataclasses.replace(
        whole, low=min(whole.low, low), high=max(whole.high, high)
    )


def interval_of_sets(gains: Sequence[float]) -> tuple[float, float]:
    """Returns the interval of a gain, from what sets of processes saw of it.

    Args:
        gains: The ratio that each set saw.

    Example:
        >>> interval_of_sets([1.5])
        (1.5, 1.5)
        >>> low, high = interval_of_sets([1.2, 1.21, 1.19, 1.2])
        >>> f"{low:.2f} {high:.2f}"
        '1.19 1.21'
        >>> interval_of_sets([1.1, 1.4, 0.9])[0] < 1.0
        True
    """
    number = len(gains)
    if number == 1:
        return gains[0], gains[0]
    logs = [math.log(gain) for gain in gains]
    factor = _STUDENT[min(number - 2, len(_STUDENT) - 1)]
    width = factor * statistics.stdev(logs) / math.sqrt(number)
    middle = statistics.mean(logs)
    return math.exp(middle - width), math.exp(middle + width)


def merge(parts: Sequence[Measurement]) -> Measurement:
    """Returns all steps of several measurements of one plan as one."""
    return dataclasses.replace(
        parts[0],
        step_times_s=tuple(time for part in parts for time in part.step_times_s),
        peak_memory_bytes=max(part.peak_memory_bytes for part in parts),
        data_share=statistics.median(part.data_share for part in parts),
        optimizer_share=statistics.median(part.optimizer_share for part in parts),
    )


def speedup_interval(
    baseline: Measurement,
    plan: Measurement,
    objective: Objective = throughput,
    seed: int = 0,
) -> tuple[float, float]:
    """Returns the 95% bootstrap interval of the ratio of two plans' median steps.

    Example:
        >>> from drivetrain_core import Measurement
        >>> slow = Measurement(step_times_s=(2.0, 2.0, 2.0), samples_per_step=1)
        >>> fast = Measurement(step_times_s=(1.0, 1.0, 1.0), samples_per_step=1)
        >>> speedup_interval(slow, fast)
        (2.0, 2.0)
    """
    draw = random.Random(seed)
    ratios = sorted(
        _median_score(objective, plan, draw) / _median_score(objective, baseline, draw)
        for _ in range(_RESAMPLES)
    )
    return ratios[int(0.025 * _RESAMPLES)], ratios[int(0.975 * _RESAMPLES) - 1]


def step_interval(measurement: Measurement, seed: int = 0) -> tuple[float, float]:
    """Returns the 95% bootstrap interval of the median step, in seconds.

    Example:
        >>> from drivetrain_core import Measurement
        >>> step_interval(Measurement(step_times_s=(1.0, 1.0), samples_per_step=1))
        (1.0, 1.0)
    """
    draw, steps = random.Random(seed), measurement.step_times_s
    medians = sorted(
        statistics.median(draw.choices(steps, k=len(steps))) for _ in range(_RESAMPLES)
    )
    return medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES) - 1]


def _median_score(
    objective: Objective, measurement: Measurement, draw: random.Random | None = None
) -> float:
    """Returns the value of the median step, of a resample if a generator is given."""
    steps = measurement.step_times_s
    if draw is not None:
        steps = tuple(draw.choices(steps, k=len(steps)))
    return score_of(objective, measurement, statistics.median(steps))


def fit_together(measured: Sequence[Measurement], memory_bytes: int) -> bool:
    """Returns whether plans fit into the device's memory at the same time."""
    return sum(m.peak_memory_bytes for m in measured) < _FITS * memory_bytes
