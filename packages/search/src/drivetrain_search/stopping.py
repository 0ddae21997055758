"""When a trial has said enough: racing, by the interval of a plan's step time.

Pure decisions over the steps so far. A plan is dropped as soon as its interval lies above
the leader's, which for one that takes twice as long is after one to three steps; one whose
interval is narrow, or whose time is used, has said enough. (Maron and Moore, Hoeffding
Races, 1993, with intervals of a normal distribution in the logarithm of the step.)
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

USUAL_NOISE = 0.05
"""By what part the steps of a plan differ, before any was seen."""

# How many steps that counts for, and by what part two processes of one plan differ as
# long as they live.
_USUAL_WEIGHT = 1
_PROCESS_NOISE = 0.03
# The quartile of a sample is less sure than its mean, by this factor (normal steps).
_QUARTILE = 1.36
_Z = 1.96
# An interval this narrow is narrower than what processes differ by.
_NARROW = 0.01
# One turn may fall into a quiet moment.
_LEAST_TURNS = 3
_TURN_S = 0.35
# One step alone may be disturbed: it must be so many times as long.
_ALONE = 2.0
_MOST_STEPS = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """Steps of a plan in a row, between which the baseline has its turn.

    Args:
        steps: Steps at least.
        seconds: Seconds at least.
    """

    steps: int
    seconds: float


class Verdict(Enum):
    """What the steps of a trial say so far."""

    GOES_ON = "goes on"
    SETTLED = "settled"
    OUTRUN = "outrun"


def turn_of(step_s: float) -> Turn:
    """Returns the turn for steps that take about as long.

    Example:
        >>> turn_of(0.001), turn_of(0.15), turn_of(5.0)
        (Turn(steps=4, seconds=0.35), Turn(steps=3, seconds=0.35), Turn(steps=1, seconds=0.35))
    """
    fill = math.ceil(_TURN_S / step_s)
    return Turn(min(max(fill, 1), _MOST_STEPS), _TURN_S)


def step_noise(times_s: Sequence[float], usual: float = USUAL_NOISE) -> float:
    """Returns by what part the steps of a plan differ.

    What disturbs a step only ever makes it longer: steps above the upper quartile count
    as much as that. Beside few steps, what is usual counts too.

    Example:
        >>> step_noise([1.0])
        0.05
        >>> step_noise([1.0] * 200) < 0.004
        True
    """
    ordered = sorted(math.log(time_s) for time_s in times_s)
    upper = ordered[-1 - (len(ordered) - 1) // 4]
    kept = [min(value, upper) for value in ordered]
    total = _USUAL_WEIGHT * usual**2
    if len(kept) > 1:
        total += statistics.variance(kept) * (len(kept) - 1)
    return math.sqrt(total / (_USUAL_WEIGHT + len(kept) - 1))


def half_width(noise: float, steps: int, *, of_plan: bool = True) -> float:
    """Returns half the 95% interval of a plan's quiet step, as a part of it.

    Args:
        noise: By what part its steps differ.
        steps: How many there are.
        of_plan: Whether the interval holds for the plan, with what processes of it differ
            by, or for this process of it alone.

    Example:
        >>> round(half_width(0.05, 4, of_plan=False), 3)
        0.067
        >>> half_width(0.0, 1_000_000) > 0.05
        True
    """
    variance = (_QUARTILE * noise) ** 2 / steps
    return _Z * math.sqrt(variance + (_PROCESS_NOISE**2 if of_plan else 0.0))


def is_outrun(times_s: Sequence[float], bound_s: float, noise: float) -> bool:
    """Returns whether a plan's steps, from its second on, are too slow for sure.

    The second one alone may not be usual: it must be far too slow.

    Args:
        times_s: The steps.
        bound_s: The leader's step, at the slow end of its interval.
        noise: By what part steps of the leader differ.

    Example:
        >>> is_outrun([2.0], 1.0, 0.05), is_outrun([3.0], 1.0, 0.05)
        (False, True)
        >>> is_outrun([1.3, 1.3], 1.0, 0.05)
        True
    """
    if not times_s:
        return False
    usual = max(noise, USUAL_NOISE)
    width = half_width(step_noise(times_s, usual), len(times_s))
    alone = _ALONE if len(times_s) == 1 else 1.0
    return min(times_s) / (1.0 + width) > alone * bound_s


def verdict(
    best: float,
    leader: float | None,
    *,
    width: float,
    turns: int,
    seconds: float,
    limit_s: float,
) -> Verdict:
    """Returns whether a trial goes on.

    Args:
        best: The score of the plan at the fast end of its interval; higher is better.
        leader: The score of the best plan at the slow end of its own; None for the
            first.
        width: Half the interval of this process's steps, as a part of them.
        turns: How many turns it had.
        seconds: What they took.
        limit_s: What they may take.

    Example:
        >>> few = {"width": 0.08, "turns": 1, "seconds": 1.0, "limit_s": 4.0}
        >>> verdict(best=6.0, leader=9.0, **few)
        <Verdict.OUTRUN: 'outrun'>
        >>> verdict(best=9.5, leader=9.0, **few)
        <Verdict.GOES_ON: 'goes on'>
    """
    if leader is not None and best < leader:
        return Verdict.OUTRUN
    enough = turns >= _LEAST_TURNS and width <= _NARROW
    return Verdict.SETTLED if enough or seconds >= limit_s else Verdict.GOES_ON
