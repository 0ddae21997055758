"""How many spot nodes there are, over time: generated from a shape, or a user's own."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_cloud.cost.table_file import read_rows, read_text
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

_DAY_S = 24 * 3600.0
_MOST_S = 100 * 366 * _DAY_S
_MOST_NODES = 1_000_000
# What is beyond them is no shape of a trace, and its numbers would overflow.
_LEAST_WEIBULL, _MOST_DOWN_H, _MOST_BURSTS = 0.05, 1e6, 86_400.0
_COLUMNS = ["seconds", "available"]


class TraceError(ProgramError):
    """A trace contradicts itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityTrace:
    """Spot nodes that can be had, from one change to the next.

    Args:
        changes: Seconds from the beginning, and how many nodes there are from then on;
            the first at 0.
        end_s: When the trace ends.
        source: Where it is from, for people.

    Raises:
        TraceError: Times do not grow, or a number is negative.

    Example:
        >>> trace = CapacityTrace(changes=((0.0, 4), (60.0, 3)), end_s=90.0, source="made up")
        >>> trace.reclaims, trace.mean_available()
        (1, 3.6666666666666665)
    """

    changes: tuple[tuple[float, int], ...]
    end_s: float
    source: str

    def __post_init__(self) -> None:
        """Checks the fields."""
        times = [time for time, _ in self.changes]
        if not times or times[0] != 0:
            message = "a trace must begin at 0 s"
            raise TraceError(message)
        for before, after in zip(times, [*times[1:], self.end_s], strict=True):
            if not before < after < math.inf:
                message = f"the times of a trace must grow, got {before} and {after} s"
                raise TraceError(message)
        if self.end_s > _MOST_S:
            message = f"a trace may last for 100 years, got {self.end_s:g} s"
            raise TraceError(message)
        for time, available in self.changes:
            if not 0 <= available <= _MOST_NODES:
                message = (
                    f"there cannot be {available} nodes at {time} s: from 0 to "
                    f"{_MOST_NODES}"
                )
                raise TraceError(message)

    @property
    def reclaims(self) -> int:
        """Returns how many nodes are taken away."""
        numbers = [available for _, available in self.changes]
        return sum(max(0, a - b) for a, b in itertools.pairwise(numbers))

    def mean_available(self) -> float:
        """Returns how many nodes there are, over time."""
        ends = [time for time, _ in self.changes[1:]] + [self.end_s]
        spans = zip(self.changes, ends, strict=True)
        return sum(n * (end - begin) for (begin, n), end in spans) / self.end_s


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceShape:
    """How nodes come and go.

    Args:
        up_h: Mean hours that a node stays.
        down_h: Mean hours until another one comes in its place.
        weibull: Shape of the time that a node stays: 1 is without memory, below 1 many
            go soon, above 1 most stay about as long.
        longest_h: No node stays longer.
        bursts_per_day: How often many go at once.
        burst_share: Which share goes then.
        daily_swing: By which share more go at noon than on average, and fewer at night.

    Raises:
        TraceError: A number is out of its range.
    """

    up_h: float
    down_h: float
    weibull: float = 1.0
    longest_h: float = math.inf
    bursts_per_day: float = 0.0
    burst_share: float = 0.5
    daily_swing: float = 0.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        for name in ("up_h", "down_h", "weibull", "longest_h"):
            if not getattr(self, name) > 0:
                message = f"{name} must be more than 0, got {getattr(self, name)}"
                raise TraceError(message)
        if not 0 <= self.bursts_per_day <= _MOST_BURSTS:
            message = (
                f"bursts_per_day must be from 0 to {_MOST_BURSTS:g}, got "
                f"{self.bursts_per_day}"
            )
            raise TraceError(message)
        if self.down_h > _MOST_DOWN_H or self.weibull < _LEAST_WEIBULL:
            message = (
                f"down_h must be at most {_MOST_DOWN_H:g} and weibull at least "
                f"{_LEAST_WEIBULL:g}, got {self.down_h} and {self.weibull}"
            )
            raise TraceError(message)
        for name in ("burst_share", "daily_swing"):
            if not 0 <= getattr(self, name) <= 1:
                message = f"{name} must be from 0 to 1, got {getattr(self, name)}"
                raise TraceError(message)


SHAPES: Mapping[str, TraceShape] = {
    "calm": TraceShape(up_h=72.0, down_h=0.5),
    "busy": TraceShape(
        up_h=10.0, down_h=1.0, weibull=0.8, bursts_per_day=0.5, daily_swing=0.5
    ),
    "daily": TraceShape(up_h=20.0, down_h=0.3, weibull=3.0, longest_h=24.0),
    "hostile": TraceShape(
        up_h=2.0, down_h=1.0, weibull=0.7, bursts_per_day=6.0, burst_share=0.8
    ),
}
"""Shapes by name. They are assumptions, and not measurements of any cloud: `calm` loses a
node of ten every seven hours, `daily` loses each within a day, as machines that may stay
for 24 hours do, `hostile` is worse than anything that one would use."""


def draw_trace(
    shape: TraceShape, nodes: int, *, days: float, seed: int = 0, name: str = "drawn"
) -> CapacityTrace:
    """Returns a trace of so many places, each with a node that comes and goes.

    Args:
        shape: How nodes come and go.
        nodes: Places.
        days: How long.
        seed: Of the draw; the same gives the same trace.
        name: Of the shape, for people.

    Raises:
        TraceError: There is no node, or no time.

    Example:
        >>> one = draw_trace(SHAPES["busy"], 8, days=2.0, seed=3)
        >>> one == draw_trace(SHAPES["busy"], 8, days=2.0, seed=3)
        True
    """
    if nodes < 1 or not 0 < days < math.inf:
        message = f"a trace needs nodes and days, got {nodes} and {days}"
        raise TraceError(message)
    end_s = days * _DAY_S
    source = random.Random(f"{seed}:{nodes}:{days}")
    bursts = _bursts(shape, end_s, source)
    edges: list[tuple[float, int]] = []
    for _ in range(nodes):
        edges += _place(shape, end_s, bursts, source)
    numbers: dict[float, int] = {0.0: nodes}
    available = nodes
    for time, step in sorted(edges):
        available += step
        numbers[time] = available
    changes = _without_repeats(sorted(numbers.items()))
    return CapacityTrace(
        changes=tuple(changes),
        end_s=end_s,
        source=f"{name}: {nodes} places for {days:g} days, seed {seed}",
    )


def _bursts(shape: TraceShape, end_s: float, source: random.Random) -> list[float]:
    found, time = [], 0.0
    while shape.bursts_per_day > 0:
        time += source.expovariate(shape.bursts_per_day / _DAY_S)
        if time >= end_s:
            break
        found.append(time)
    return found


def _place(
    shape: TraceShape, end_s: float, bursts: list[float], source: random.Random
) -> list[tuple[float, int]]:
    """Returns when the node of one place goes and comes."""
    scale_s = 3600 * shape.up_h / math.gamma(1 + 1 / shape.weibull)
    edges: list[tuple[float, int]] = []
    time = 0.0
    while True:
        stays_s = source.weibullvariate(scale_s, shape.weibull)
        if shape.daily_swing:
            # More go at noon: those that came shortly before stay for less long.
            phase = math.sin(math.pi * ((time % _DAY_S) / _DAY_S))
            stays_s /= 1 + shape.daily_swing * (2 * phase - 4 / math.pi)
        stays_s = min(stays_s, 3600 * shape.longest_h)
        gone = time + max(1.0, stays_s)
        for burst in bursts:
            if time < burst < gone and source.random() < shape.burst_share:
                gone = burst
                break
        if gone >= end_s:
            return edges
        time = gone + max(1.0, source.expovariate(1 / (3600 * shape.down_h)))
        edges.append((gone, -1))
        if time >= end_s:
            return edges
        edges.append((time, 1))


def _without_repeats(rows: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    for time, available in rows:
        if not found or found[-1][1] != available:
            found.append((time, available))
    return found


def read_trace(
    path: str | os.PathLike[str], *, end_s: float | None = None
) -> CapacityTrace:
    """Reads a trace: a CSV with the columns `seconds` and `available`.

    Args:
        path: Where it lies; lines that begin with # are for people.
        end_s: When it ends; an hour after its last change by default.

    Raises:
        TraceError: It is none, with the line that is wrong.
        OSError: It cannot be read.
    """
    text = read_text(Path(path), TraceError)
    changes = []
    for at, cells in read_rows(text, str(path), _COLUMNS, TraceError):
        try:
            seconds, available = cells
            changes.append((float(seconds), int(available)))
        except ValueError:
            message = (
                f"{at}: expected seconds and a number of nodes, got {', '.join(cells)}"
            )
            raise TraceError(message) from None
    last_s = changes[-1][0] if changes else 0.0
    try:
        return CapacityTrace(
            changes=tuple(changes),
            end_s=last_s + 3600 if end_s is None else end_s,
            source=str(path),
        )
    except TraceError as error:
        message = f"{path}: {error}"
        raise TraceError(message) from None
