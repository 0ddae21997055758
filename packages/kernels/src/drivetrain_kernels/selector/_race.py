"""Times candidates in turns, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MIN_ROUNDS = 7
MAX_ROUNDS = 61
_HOPELESS = 1.05  # times eager, at the lower end of the interval
_CLOSE_ENOUGH = 0.01
_FEW = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a step takes, alone and beside eager.

    Args:
        step_s: The median time of a step.
        ratio: The median of the ratios to eager in the same round.
        low: The lower end of their interval of about 95 %.
        high: The upper end.
        num_rounds: How many there were.
    """

    step_s: float
    ratio: float
    low: float
    high: float
    num_rounds: int


def race(
    samplers: Mapping[str, Callable[[], float]],
    *,
    enough: float,
    out_of_time: Callable[[], bool],
) -> dict[str, Timing]:
    """Samples every candidate once a round, until the order is clear.

    The order within a round is another each time, the same in every race: what runs
    behind another finds the caches as that one left them. A candidate that is clearly
    slower is not sampled any further.

    Args:
        samplers: By name, a function that returns the seconds of a step; the first is
            eager.
        enough: A candidate counts as faster when its ratio is at most this.
        out_of_time: Whether no further round may begin; one is always run.

    Example:
        >>> found = race({"eager": lambda: 2.0, "fast": lambda: 1.0}, enough=0.98,
        ...     out_of_time=lambda: False)
        >>> found["fast"].ratio, found["fast"].num_rounds
        (0.5, 7)
    """
    eager = next(iter(samplers))
    times: dict[str, list[float]] = {name: [] for name in samplers}
    running = list(samplers)
    for num in range(MAX_ROUNDS):
        for name in random.Random(num).sample(running, len(running)):
            times[name].append(samplers[name]())
        found = {name: _timing(times[name], times[eager]) for name in running}
        done = num + 1 >= MIN_ROUNDS
        if out_of_time() or (done and is_settled(found, eager, enough)):
            break
        if done:
            running = [n for n in running if found[n].low < _HOPELESS or n == eager]
    return {name: _timing(times[name], times[eager]) for name in samplers}


def is_settled(found: Mapping[str, Timing], eager: str, enough: float) -> bool:
    """Returns whether more rounds would not change which candidate is taken.

    Each must be surely faster than eager or surely not, and the fastest must be surely
    faster than the next, or as fast within a percent.

    Args:
        found: By name, what was measured up to now.
        eager: The name of eager.
        enough: A candidate counts as faster when its ratio is at most this.
    """
    others = sorted((t for n, t in found.items() if n != eager), key=lambda t: t.ratio)
    for timing in others:
        narrow = timing.high - timing.low < _CLOSE_ENOUGH
        if timing.low <= enough <= timing.high and not narrow:
            return False
    if len(others) > 1 and others[0].ratio <= enough:
        best, second = others[:2]
        close = second.ratio - best.ratio < _CLOSE_ENOUGH
        return close or best.high < second.low or second.low > enough
    return True


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median and the interval of about 95 % that it lies in.

    The ends are order statistics: nothing is assumed of how times are distributed. Of
    fewer than five values the interval is the range and a tenth more at both ends.

    Example:
        >>> spread([3.0, 1.0, 2.0, 9.0, 4.0])
        (3.0, 1.0, 9.0)
    """
    ordered = sorted(values)
    num = len(ordered)
    if num < _FEW:
        return statistics.median(ordered), 0.9 * ordered[0], 1.1 * ordered[-1]
    cut = max(math.floor(num / 2 - 0.98 * math.sqrt(num)), 0)
    return statistics.median(ordered), ordered[cut], ordered[num - 1 - cut]


def _timing(times: Sequence[float], eager: Sequence[float]) -> Timing:
    ratios = [own / base for own, base in zip(times, eager, strict=False)]
    return Timing(statistics.median(times), *spread(ratios), len(times))
