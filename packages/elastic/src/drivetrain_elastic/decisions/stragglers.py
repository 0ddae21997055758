"""Which workers are slow by themselves, rather than waiting for one that is.

What is compared is the time that a rank spends in a section of its own, such as computing;
waiting for others is no such section, so that a rank that waits for a slow one is as fast as
ever. A window holds the same steps on all ranks. In each, a rank is slow if it takes so many
times as long as the others do (a ratio of medians), and lies so far outside of what is usual
among them (a robust score, of the median absolute deviation). Only who is slow in k of the last
n windows is a straggler: a hiccup is none.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The deviation of normally distributed values is this times their median absolute deviation.
_NORMAL = 1.4826
# Ranks that happen to be all equally fast would make the smallest difference infinite.
_LEAST_SPREAD = 0.01
_FEWEST, _MANY = 2, 32


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerConfig:
    """When a worker counts as slow.

    Args:
        ratio: It takes at least so many times as long as the median of the others.
        score: It is at least so many deviations above the median of the others.
        num_slow: k: in so many windows.
        num_windows: n: of so many, the last ones.
        least_s: What is slower by less time is no matter.
        least_share: And what is slower by less than this share of the time that ranks
            spend by themselves in a step.

    Raises:
        ProgramError: A value is out of range.
    """

    ratio: float = 1.3
    score: float = 6.0
    num_slow: int = 3
    num_windows: int = 5
    least_s: float = 0.001
    least_share: float = 0.1

    def __post_init__(self) -> None:
        """Checks the values."""
        least = min(self.score, self.least_s, self.least_share)
        if not (self.ratio > 1 and least >= 0):
            message = (
                "ratio must be more than 1, score, least_s and least_share at least 0, "
                f"got {self.ratio}, {self.score}, {self.least_s} and {self.least_share}"
            )
            raise ProgramError(message)
        if not 1 <= self.num_slow <= self.num_windows:
            message = (
                "num_slow must be from 1 to num_windows, got "
                f"{self.num_slow} and {self.num_windows}"
            )
            raise ProgramError(message)


class Window(NamedTuple):
    """The same steps on all ranks.

    Attributes:
        number: Which one.
        sections_s: For each worker, the median time of a step in each section, in seconds.
        num_samples: That each worker had in a step; empty if all had as many.
    """

    number: int
    sections_s: Mapping[str, Mapping[str, float]]
    num_samples: Mapping[str, float] = MappingProxyType({})


class Score(NamedTuple):
    """How a worker compares with the others.

    Attributes:
        ratio: Its time over the median of the others.
        score: How many deviations it lies above that.
        excess_s: How much longer it takes, in seconds.
    """

    ratio: float
    score: float
    excess_s: float


class Straggler(NamedTuple):
    """A worker that is slow by itself.

    Attributes:
        worker: Which one.
        section: In what.
        ratio: How many times as long it takes as the others do, in the last slow window.
        score: How many deviations that is.
        num_slow: In how many of the last windows it was slow.
        excess_s: How much longer each of its steps took, in seconds.
    """

    worker: str
    section: str
    ratio: float
    score: float
    num_slow: int
    excess_s: float

    @property
    def reason(self) -> str:
        """What was found, for people."""
        return (
            f"takes {self.ratio:.2f} times as long as the others in {self.section!r}, "
            f"{self.score:.0f} deviations, in {self.num_slow} windows"
        )


def score_window(
    seconds: Mapping[str, float],
    num_samples: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Score]:
    """Compares each worker with all others in one section.

    Who has more samples than others takes longer for that, and who has fewer takes longer
    for each: a worker must stand out both ways.

    Args:
        seconds: The median time of a step, by worker. What is no time is left out.
        num_samples: That each worker had in a step; empty if all had as many.

    Example:
        >>> scores = score_window({"a": 1.0, "b": 1.02, "c": 0.98, "d": 1.5})
        >>> round(scores["d"].ratio, 2), scores["d"].score > 6, scores["a"].ratio < 1.1
        (1.5, True, True)
    """
    scores = _compare(seconds)
    if len(set(num_samples.values())) < 2:
        return scores
    each = {
        worker: own_s / num_samples[worker]
        for worker, own_s in seconds.items()
        if num_samples.get(worker, 0) > 0
    }
    per_sample = _compare(each)
    return {
        worker: min(one, per_sample[worker]._replace(excess_s=one.excess_s))
        for worker, one in scores.items()
        if worker in per_sample
    }


def _compare(seconds: Mapping[str, float]) -> dict[str, Score]:
    sound = {w: s for w, s in seconds.items() if math.isfinite(s) and s >= 0}
    scores = {}
    all_s = list(sound.values())
    among_all = _middle_of(all_s) if len(all_s) > _MANY else None
    for worker, own_s in sound.items():
        if len(all_s) < _FEWEST:
            continue
        # Among many, one more or less hardly changes what is usual.
        middle, spread = among_all or _middle_of(
            [s for other, s in sound.items() if other != worker]
        )
        spread = max(spread, _LEAST_SPREAD * middle)
        excess = own_s - middle
        if middle <= 0:
            ratio = score = math.inf if own_s > 0 else 1.0
        else:
            ratio, score = own_s / middle, excess / spread
        scores[worker] = Score(ratio, score, excess)
    return scores


def own_time(window: Window) -> float:
    """Returns the time that ranks spend by themselves in a step, by their median.

    Args:
        window: The window.
    """
    sums = [
        math.fsum(s for s in sections.values() if math.isfinite(s) and s >= 0)
        for sections in window.sections_s.values()
    ]
    return statistics.median(sums) if sums else 0.0


def _middle_of(seconds: list[float]) -> tuple[float, float]:
    """Returns the median, and how far values usually lie from it."""
    middle = statistics.median(seconds)
    return middle, _NORMAL * statistics.median(abs(s - middle) for s in seconds)


def judge_stragglers(
    windows: Sequence[Window], config: StragglerConfig
) -> tuple[Straggler, ...]:
    """Names the workers that are slow by themselves, the slowest first.

    Args:
        windows: Of one world, in order; the last ones count.
        config: What counts as slow.

    Example:
        >>> steps = {"a": {"compute": 0.1}, "b": {"compute": 0.1}, "c": {"compute": 0.2}}
        >>> windows = [Window(number, steps) for number in range(3)]
        >>> judge_stragglers(windows[:2], StragglerConfig())
        ()
        >>> [one.worker for one in judge_stragglers(windows, StragglerConfig())]
        ['c']
    """
    num_slow: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], Score] = {}
    for window in windows[-config.num_windows :]:
        for section, worker, one, is_long in section_scores(window, config):
            if is_long and one.ratio >= config.ratio and one.score >= config.score:
                num_slow[worker, section] += 1
                last[worker, section] = one
    found = [
        Straggler(worker, section, one.ratio, one.score, num_slow[worker, section], s)
        for (worker, section), one in last.items()
        if num_slow[worker, section] >= config.num_slow
        for s in [one.excess_s]
    ]
    return tuple(sorted(found, key=lambda one: -one.excess_s))


def section_scores(
    window: Window, config: StragglerConfig
) -> Iterator[tuple[str, str, Score, bool]]:
    """Yields each section with each of its workers, its score, and whether it lasts.

    Args:
        window: The window.
        config: How much longer a section must take for anything to follow from it.
    """
    least_s = max(config.least_s, config.least_share * own_time(window))
    for section in sorted({s for one in window.sections_s.values() for s in one}):
        seconds = {
            worker: sections[section]
            for worker, sections in window.sections_s.items()
            if section in sections
        }
        for worker, score in score_window(seconds, window.num_samples).items():
            yield section, worker, score, score.excess_s >= least_s
