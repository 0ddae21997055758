"""Reduction plans and the trial that finds the fastest, in the first training steps.

A model of the network names the candidates, and training steps in turns decide between
them: nothing is committed that was not measured. The tuner is a pure state machine; all
ranks feed it the same numbers, so that all take the same decisions.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from drivetrain_comm.ddp._predict import merged, span_s
from drivetrain_comm.selection._choice import STOCK, Choice
from drivetrain_comm.selection._cost import cost_of
from drivetrain_comm.selection._select import useful_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from drivetrain_comm._settings import Settings
    from drivetrain_comm.ddp._predict import Bucket
    from drivetrain_comm.selection._cost import Cost, Network
    from drivetrain_comm.selection._load import Load

_BUCKET_BYTES = tuple((1 << 20) * size for size in (1, 2, 4, 8, 16, 32, 64))
# More than any model has.
_ALL_BYTES = 1 << 50
# How much worse than the best a candidate may be, as the model says.
_WITHIN = 1.1
_NUM_CANDIDATES = 6
# What DDP itself collects, and how much worse than the best torch's backend may be
# predicted to be and have a trial all the same: of it the model knows least.
_STOCK_BUCKET_BYTES = 25 << 20
# DDP's first bucket; and how many sizes beside its own are tried on a device.
FIRST_BYTES, _NUM_ON_DEVICE = 1 << 20, 3
_MOST_GRAINS = 128
_STOCK_WITHIN = 1.5
# What is slower than the best by as much goes before its time.
_HOPELESS = 1.25


@dataclass(frozen=True, kw_only=True, slots=True)
class ReductionPlan:
    """How the gradients of a step are reduced.

    Args:
        bucket_bytes: How much is collected before it leaves.
        choice: How it is reduced.
        firsts: How much each of the first ones holds, where that differs.
    """

    bucket_bytes: int
    choice: Choice
    firsts: tuple[int, ...] = ()

    def limit(self, num_sent: int) -> int:
        """Returns how much the bucket behind so many holds.

        Example:
            >>> choice = Choice(algorithm="stock")
            >>> plan = ReductionPlan(bucket_bytes=8, firsts=(1,), choice=choice)
            >>> plan.limit(0), plan.limit(1)
            (1, 8)
        """
        return (*self.firsts[num_sent:], self.bucket_bytes)[0]

    def __str__(self) -> str:
        """For people: `ring, 4 streams, buckets of 8 MiB`."""
        sizes = [
            f"{size / (1 << 20):.3g}" for size in (*self.firsts, self.bucket_bytes)
        ]
        if self.bucket_bytes == _ALL_BYTES:
            sizes[-1:] = []
        said = f"buckets of {', '.join(sizes)} MiB" if sizes else "all at once"
        return f"{self.choice}, {said}"


def candidates(
    buckets: Sequence[Bucket],
    loads: Mapping[str, Load],
    network: Network,
    settings: Settings,
) -> list[tuple[ReductionPlan, float]]:
    """Returns the plans worth a trial, the best first, and how long each should take.

    Args:
        buckets: When DDP's buckets are ready, and their sizes.
        loads: What each algorithm asks of the network.
        network: What was measured.
        settings: What is fixed.
    """
    total = sum(bucket.size_bytes for bucket in buckets)
    sizes = [size for size in _BUCKET_BYTES if size < total] + [_ALL_BYTES]
    if settings.bucket_mb is not None:
        sizes = [int(settings.bucket_mb * (1 << 20))]
    streams = [settings.streams] if settings.streams else useful_streams(network)
    found = []
    for algorithm, load in loads.items():
        if settings.algorithm not in {None, algorithm}:
            continue
        for num_streams in streams if load.link else [1]:
            for size in sizes:
                choice = Choice(algorithm=algorithm, num_streams=num_streams)
                plan = ReductionPlan(bucket_bytes=size, choice=choice)
                cost = partial(cost_of, load, network, num_streams)
                seconds = span_s(merged(buckets, plan.limit), cost)
                found.append((plan, seconds))
    found.sort(key=lambda pair: pair[1])
    return _diverse([pair for pair in found if pair[1] <= found[0][1] * _WITHIN])


def _diverse(
    ranked: list[tuple[ReductionPlan, float]],
) -> list[tuple[ReductionPlan, float]]:
    """Picks the best of each algorithm first, then the best that are left."""
    firsts: dict[str, tuple[ReductionPlan, float]] = {}
    for pair in ranked:
        firsts.setdefault(pair[0].choice.algorithm, pair)
    picked = list(firsts.values())[: _NUM_CANDIDATES // 2]
    picked += [pair for pair in ranked if pair not in picked]
    return sorted(picked[:_NUM_CANDIDATES], key=lambda pair: pair[1])


def with_stock(
    found: Sequence[tuple[ReductionPlan, float]],
    buckets: Sequence[Bucket],
    load: Load,
    network: Network,
    settings: Settings,
) -> list[tuple[ReductionPlan, float]]:
    """Returns candidates, and torch's own way among them wherever it may win.

    Args:
        found: What `candidates` returned.
        buckets: When DDP's buckets are ready, and their sizes.
        load: What torch's backend asks of the network.
        network: What was measured.
        settings: What is fixed. What torch's backend cannot do leaves it out.
    """
    fixed = settings.algorithm or settings.schedule or settings.streams
    if fixed or settings.compression != "none":
        return list(found)
    stock = stock_plan(settings)
    seconds = span_s(merged(buckets, stock.limit), partial(cost_of, load, network, 1))
    if seconds > found[0][1] * _STOCK_WITHIN:
        return list(found)
    return sorted([*found, (stock, seconds)], key=lambda pair: pair[1])


def stock_plan(settings: Settings, *firsts: int) -> ReductionPlan:
    """Returns torch's own way, with buckets of the size that is fixed or of DDP's.

    Args:
        settings: What is fixed.
        firsts: How much the first buckets hold, unless the size is fixed.
    """
    size, choice = _STOCK_BUCKET_BYTES, Choice(algorithm=STOCK)
    if settings.bucket_mb is not None:
        size, firsts = int(settings.bucket_mb * (1 << 20)), ()
    return ReductionPlan(bucket_bytes=size, choice=choice, firsts=firsts)


def candidates_on_device(
    buckets: Sequence[Bucket], cost: Callable[[int], Cost], settings: Settings
) -> list[tuple[ReductionPlan, float]]:
    """Returns the sizes of buckets that are worth a trial on a device, and DDP's own.

    Args:
        buckets: When DDP's buckets are ready, and their sizes.
        cost: Of an all-reduce of so many bytes.
        settings: What is fixed.
    """
    stock = stock_plan(settings, FIRST_BYTES)
    if settings.bucket_mb is not None:
        return [(stock, 0.0)]
    # Many small buckets are a coarser row of them, whose best is found as soon.
    grain = sum(bucket.size_bytes for bucket in buckets) // _MOST_GRAINS
    best = best_sizes(merged(buckets, lambda _: grain), cost)
    plans = [
        replace(stock, bucket_bytes=_ALL_BYTES, firsts=best),
        *(replace(stock, bucket_bytes=size) for size in (*_BUCKET_BYTES, _ALL_BYTES)),
    ]
    # Plans that become the same messages are one; DDP's own comes first.
    found: dict[tuple[int, ...], tuple[ReductionPlan, float]] = {}
    for plan in (stock, *plans):
        messages = merged(buckets, plan.limit)
        sizes = tuple(message.size_bytes for message in messages)
        found.setdefault(sizes, (plan, span_s(messages, cost)))
    usual, *others = found.values()
    return [usual, *sorted(others, key=lambda pair: pair[1])[:_NUM_ON_DEVICE]]


def best_sizes(
    buckets: Sequence[Bucket], cost: Callable[[int], Cost]
) -> tuple[int, ...]:
    """Returns the messages that end first of all, one behind the other.

    By dynamic programming over the buckets: what ends first up to one of them is part of
    what ends first up to a later one.

    Args:
        buckets: When DDP's buckets are ready, and their sizes.
        cost: Of an all-reduce of so many bytes.

    Example:
        >>> from drivetrain_comm.ddp._predict import Bucket
        >>> from drivetrain_comm.selection._cost import Cost
        >>> late = [Bucket(ready_s=at, size_bytes=10) for at in (0, 1, 9)]
        >>> best_sizes(late, lambda size: Cost(busy_s=1 + size / 10, alone_s=0))
        (20, 10)
    """
    ends: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for last, bucket in enumerate(buckets):
        size, ways = 0, []
        for first in range(last, -1, -1):
            size += buckets[first].size_bytes
            end_s = max(ends[first][0], bucket.ready_s) + cost(size).busy_s
            ways.append((end_s, (*ends[first][1], size)))
        ends.append(min(ways, key=lambda way: (way[0], len(way[1]))))
    return ends[-1][1]


@dataclass(kw_only=True, slots=True)
class Trial:
    """Candidates, tried in turns; the worst go after each round.

    Args:
        plans: The candidates.
        rounds: How many steps each takes for each that is left, and how many stay.

    Attributes:
        history: How long the steps of each have taken, in seconds.
        winner: The one that is left, when it is.

    Example:
        >>> one, two = (ReductionPlan(bucket_bytes=size, choice=Choice(algorithm="ring"))
        ...     for size in (1 << 20, 2 << 20))
        >>> trial = Trial(plans=[one, two])
        >>> while trial.winner is None:
        ...     steps = trial.next_steps()
        ...     trial.record([0.5 if plan == one else 0.4 for plan in steps])
        >>> trial.winner == two
        True
    """

    plans: list[ReductionPlan]
    rounds: tuple[tuple[int, int], ...] = ((2, 4), (2, 3), (3, 2), (4, 1))
    history: dict[ReductionPlan, list[float]] = field(default_factory=dict)
    winner: ReductionPlan | None = None
    _round: int = 0
    _left: list[ReductionPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Wins at once where there is nothing to choose."""
        self._left = list(self.plans)
        self.history = {plan: [] for plan in self.plans}
        if len(self._left) == 1:
            self.winner = self._left[0]

    def next_steps(self) -> list[ReductionPlan]:
        """Returns the plans of the next steps, one a step."""
        num, _ = self.rounds[self._round]
        turns = [self._left, self._left[::-1]]
        return [plan for turn in range(num) for plan in turns[turn % 2]]

    def record(self, seconds: Sequence[float]) -> None:
        """Takes how long the steps of `next_steps` took, the slowest rank's."""
        for plan, value in zip(self.next_steps(), seconds, strict=True):
            self.history[plan].append(value)
        self._left.sort(key=self._typical)
        limit = self._typical(self._left[0]) * _HOPELESS
        _, num_stay = self.rounds[self._round]
        self._left = [t for t in self._left if self._typical(t) <= limit][:num_stay]
        self._round += 1
        if len(self._left) == 1:
            self.winner = self._left[0]

    def _typical(self, plan: ReductionPlan) -> float:
        # Disturbances only ever make a step longer: the faster half tells more.
        values = sorted(self.history[plan])
        return statistics.fmean(values[: (len(values) + 1) // 2])
