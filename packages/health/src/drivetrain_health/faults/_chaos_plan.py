"""Which faults come when: a pure function of a seed."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What is over as soon as it is done.
_INSTANT = frozenset({"kill"})


class Strike(NamedTuple):
    """A fault that is to come.

    Attributes:
        at_s: When, in seconds since the beginning.
        kind: Which: `kill`, `stop`, `slow`, or one of your own.
        slot: Which of the targets it hits.
        lasts_s: How long; 0 for a kind that is over at once.
        severity: From 0 to 1, how bad it is, where a kind has degrees.
    """

    at_s: float
    kind: str
    slot: int
    lasts_s: float
    severity: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosSpec:
    """What kind of chaos there is.

    Args:
        seed: The same seed gives the same faults, on every machine.
        num_targets: How many targets there are.
        every_s: The time between two faults, on average; single times are exponential.
        kinds: How often each kind comes, in proportion to the others.
        lasts_s: The least and the most that a fault lasts.

    Raises:
        ProgramError: A value is out of range.
    """

    seed: int
    num_targets: int
    every_s: float
    kinds: Mapping[str, float] = field(
        default_factory=lambda: {"kill": 1.0, "stop": 1.0, "slow": 1.0}
    )
    lasts_s: tuple[float, float] = (0.5, 5.0)

    def __post_init__(self) -> None:
        """Checks the values."""
        least_s, most_s = self.lasts_s
        for is_right, says in (
            (self.num_targets >= 1, f"num_targets must be 1, got {self.num_targets}"),
            (self.every_s > 0, f"every_s must be over 0, got {self.every_s}"),
            (0 <= least_s <= most_s, f"lasts_s must grow from 0, got {self.lasts_s}"),
            (
                min(self.kinds.values(), default=-1) >= 0 < sum(self.kinds.values()),
                f"kinds must have weights of which one is over 0, got {self.kinds}",
            ),
        ):
            if not is_right:
                raise ProgramError(says)


def plan_chaos(spec: ChaosSpec, num: int) -> list[Strike]:
    """Returns the first faults of a chaos, in the order of their times.

    No target has two at once: a fault waits until a target is free of others. Those of
    a shorter plan are the first ones of a longer one.

    Args:
        spec: What kind of chaos there is.
        num: How many faults.

    Example:
        >>> spec = ChaosSpec(seed=3, num_targets=4, every_s=10.0)
        >>> for one in plan_chaos(spec, 3):
        ...     print(f"{one.at_s:5.1f} s: {one.kind} {one.slot} for {one.lasts_s:.1f} s")
          2.7 s: slow 1 for 3.2 s
          3.4 s: kill 3 for 0.0 s
         57.8 s: slow 3 for 2.6 s
    """
    return list(itertools.islice(strikes(spec), num))


def strikes(spec: ChaosSpec) -> Iterator[Strike]:
    """Yields the faults of a chaos, without end."""
    dice = random.Random(spec.seed)
    free_s = [0.0] * spec.num_targets
    at_s = 0.0
    while True:
        # Only `random` itself gives the same numbers in every version of Python.
        gap, which, where, length, severity = (dice.random() for _ in range(5))
        at_s = max(at_s - math.log(1 - gap) * spec.every_s, min(free_s))
        kind = _pick(spec.kinds, which)
        slots = [slot for slot, until_s in enumerate(free_s) if until_s <= at_s]
        slot = slots[int(where * len(slots))]
        least_s, most_s = spec.lasts_s
        lasts_s = 0.0 if kind in _INSTANT else least_s + length * (most_s - least_s)
        free_s[slot] = at_s + lasts_s
        yield Strike(at_s, kind, slot, lasts_s, severity)


def _pick(kinds: Mapping[str, float], number: float) -> str:
    """Returns the kind that a number from 0 to 1 stands for."""
    rest = number * sum(kinds.values())
    # By name: a mapping with the same weights in another order is the same chaos.
    for kind in sorted(kinds):
        rest -= kinds[kind]
        if rest < 0:
            return kind
    return max(kind for kind in kinds if kinds[kind])
