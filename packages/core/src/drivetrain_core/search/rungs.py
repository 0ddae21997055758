"""How long a trial runs: a few steps, then more for those that are still in the race.

Pure decisions over the scores of the steps so far. The first rung is never a single
step: a plan's first steps are its slowest. A plan is dropped when even its best step
could not make it the leader; one that is close to the leader earns the longest rung.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RUNGS", "Rung", "next_rung"]


@dataclass(frozen=True, slots=True)
class Rung:
    """How much is measured, in bouts between which the baseline has its turn.

    Args:
        bouts: How many bouts.
        steps: Steps of a bout at least.
        seconds: Seconds of a bout at least.
    """

    bouts: int
    steps: int
    seconds: float


RUNGS = (Rung(1, 4, 0.3), Rung(2, 4, 0.35), Rung(2, 4, 0.4))
"""The rungs in order; a trial that ends in rung i has run all up to i."""

# A plan whose best step is this much behind the leader's usual one is out.
_OUTRUN = 1.15
# A plan within this part of the leader is measured longest.
_CLOSE = 1.05
# Steps that vary more than this need more of them, close or not.
_BUSY = 1.25


def next_rung(
    rung: int, best: float, usual: float, leader: float | None, spread: float
) -> int | None:
    """Returns the rung to run next, or None when the trial has said enough.

    Args:
        rung: The rung that was just run, from 0.
        best: The score of the plan's best step; higher is better.
        usual: The score of its quiet steps.
        leader: The score of the best plan so far; None for the baseline, which runs
            every rung.
        spread: The upper quartile of its steps over the lower one.

    Example:
        >>> next_rung(0, best=5.0, usual=4.8, leader=10.0, spread=1.0) is None
        True
        >>> next_rung(0, best=10.0, usual=9.9, leader=10.0, spread=1.0)
        1
    """
    if rung + 1 == len(RUNGS):
        return None
    if leader is None:
        return rung + 1
    if best * _OUTRUN < leader:
        return None
    if rung == 0:
        return 1
    close = usual * _CLOSE >= leader
    return rung + 1 if close or spread > _BUSY else None
