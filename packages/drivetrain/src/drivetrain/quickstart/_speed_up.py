"""By how much one run is faster than another that had its turns with it."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESAMPLES = 1000


class SpeedUp(NamedTuple):
    """The ratio of two runs.

    Attributes:
        ratio: How many times as fast the second one is, by the median steps.
        half_width: Of its 95% interval, from the spread of the turns.
    """

    ratio: float
    half_width: float


def speed_up(
    program: Sequence[Sequence[float]], plan: Sequence[Sequence[float]]
) -> SpeedUp:
    """Returns how many times as fast a plan is as the program.

    A slow minute of the machine hits a turn of both, so that turns are drawn in pairs.

    Args:
        program: The times of its steps, turn by turn.
        plan: Those of the plan, in the same number of turns.

    Example:
        >>> speed_up([[2.0, 2.0], [2.0]], [[1.0, 1.0], [1.0]])
        SpeedUp(ratio=2.0, half_width=0.0)
    """
    pairs = list(zip(program, plan, strict=True))
    draw = random.Random(0)
    ratios = sorted(
        _ratio(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES)
    )
    low, high = ratios[_RESAMPLES // 40], ratios[-_RESAMPLES // 40 - 1]
    return SpeedUp(_ratio(pairs), (high - low) / 2)


def _ratio(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    before, after = (
        statistics.median(step_s for pair in pairs for step_s in pair[side])
        for side in (0, 1)
    )
    return before / after
