"""Finds the fastest way to reduce gradients, during the first steps of a training.

A model of the network names the candidates, and training steps in turns decide between
them: nothing is committed that was not measured. The tuner is a pure state machine; all
ranks feed it the same numbers, so that all take the same decisions.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivetrain_comm._choice import STOCK, Choice
from drivetrain_comm._pick import useful_streams
from drivetrain_comm._predict import span_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_comm._cost import Network
    from drivetrain_comm._load import Load
    from drivetrain_comm._predict import Bucket
    from drivetrain_comm._settings import Settings

__all__ = ["Tactic", "Trial", "candidates", "with_stock"]

_BUCKET_BYTES = tuple((1 << 20) * size for size in (1, 2, 4, 8, 16, 32, 64))
# More than any model has.
_ALL_BYTES = 1 << 50
# How much worse than the best a candidate may be, as the model says.
_WITHIN = 1.1
_NUM_CANDIDATES = 6
# What DDP itself collects, and how much worse than the best torch's backend may be
# predicted to be and have a trial all the same: of it the model knows least.
_STOCK_BUCKET_BYTES = 25 << 20
_STOCK_WITHIN = 1.5
# The rounds of a trial: how many steps for each that is left, and how many stay.
_ROUNDS = ((2, 4), (2, 3), (3, 2), (4, 1))
# What is slower than the best by as much goes before its time.
_HOPELESS = 1.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Tactic:
    """How the gradients of a step are reduced.

    Args:
        bucket_bytes: How much is collected before it leaves.
        choice: How it is reduced.
    """

    bucket_bytes: int
    choice: Choice

    def __str__(self) -> str:
        """For people: `ring, 4 streams, buckets of 8 MiB`."""
        if self.bucket_bytes == _ALL_BYTES:
            return f"{self.choice}, all at once"
        return f"{self.choice}, buckets of {self.bucket_bytes / (1 << 20):g} MiB"


def candidates(
    buckets: Sequence[Bucket],
    loads: Mapping[str, Load],
    network: Network,
    settings: Settings,
) -> list[tuple[Tactic, float]]:
    """Returns the tactics worth a trial, the best first, and how long each should take.

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
                tactic = Tactic(bucket_bytes=size, choice=choice)
                seconds = span_s(buckets, size, load, network, num_streams)
                found.append((tactic, seconds))
    found.sort(key=lambda pair: pair[1])
    return _diverse([pair for pair in found if pair[1] <= found[0][1] * _WITHIN])


def _diverse(ranked: list[tuple[Tactic, float]]) -> list[tuple[Tactic, float]]:
    """Picks the best of each algorithm first, then the best that are left."""
    firsts: dict[str, tuple[Tactic, float]] = {}
    for pair in ranked:
        firsts.setdefault(pair[0].choice.algorithm, pair)
    picked = list(firsts.values())[: _NUM_CANDIDATES // 2]
    picked += [pair for pair in ranked if pair not in picked]
    return sorted(picked[:_NUM_CANDIDATES], key=lambda pair: pair[1])


def with_stock(
    found: Sequence[tuple[Tactic, float]],
    buckets: Sequence[Bucket],
    load: Load,
    network: Network,
    settings: Settings,
) -> list[tuple[Tactic, float]]:
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
    size = _STOCK_BUCKET_BYTES
    if settings.bucket_mb is not None:
        size = int(settings.bucket_mb * (1 << 20))
    seconds = span_s(buckets, size, load, network, 1)
    if seconds > found[0][1] * _STOCK_WITHIN:
        return list(found)
    stock = Tactic(bucket_bytes=size, choice=Choice(algorithm=STOCK))
    return sorted([*found, (stock, seconds)], key=lambda pair: pair[1])


@dataclass(kw_only=True, slots=True)
class Trial:
    """Candidates, tried in turns; the worst go after each round.

    Args:
        tactics: The candidates.

    Attributes:
        history: How long the steps of each have taken, in seconds.
        winner: The one that is left, when it is.

    Example:
        >>> one, two = (Tactic(bucket_bytes=size, choice=Choice(algorithm="ring"))
        ...     for size in (1 << 20, 2 << 20))
        >>> trial = Trial(tactics=[one, two])
        >>> while trial.winner is None:
        ...     steps = trial.next_steps()
        ...     trial.record([0.5 if tactic == one else 0.4 for tactic in steps])
        >>> trial.winner == two
        True
    """

    tactics: list[Tactic]
    history: dict[Tactic, list[float]] = field(default_factory=dict)
    winner: Tactic | None = None
    _round: int = 0
    _left: list[Tactic] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Wins at once where there is nothing to choose."""
        self._left = list(self.tactics)
        self.history = {tactic: [] for tactic in self.tactics}
        if len(self._left) == 1:
            self.winner = self._left[0]

    def next_steps(self) -> list[Tactic]:
        """Returns the tactics of the next steps, one a step."""
        num, _ = _ROUNDS[self._round]
        turns = [self._left, self._left[::-1]]
        return [tactic for turn in range(num) for tactic in turns[turn % 2]]

    def record(self, seconds: Sequence[float]) -> None:
        """Takes how long the steps of `next_steps` took, the slowest rank's."""
        for tactic, value in zip(self.next_steps(), seconds, strict=True):
            self.history[tactic].append(value)
        self._left.sort(key=self._typical)
        limit = self._typical(self._left[0]) * _HOPELESS
        _, num_stay = _ROUNDS[self._round]
        self._left = [t for t in self._left if self._typical(t) <= limit][:num_stay]
        self._round += 1
        if len(self._left) == 1:
            self.winner = self._left[0]

    def _typical(self, tactic: Tactic) -> float:
        # Disturbances only ever make a step longer: the faster half tells more.
        values = sorted(self.history[tactic])
        return statistics.fmean(values[: (len(values) + 1) // 2])
