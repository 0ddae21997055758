"""How many passes an observation makes: what fits the time that it has.

Pure arithmetic. The first steps are always looked at; what follows from the first to the
last widens or sharpens what a plan is held to, and is left out where passes are long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from drivetrain_core.numerics.observation import FIRST_STEPS

TRAJECTORY_STEPS = 14
"""Steps of the baseline at most, and of a plan that is to be chosen."""

_NOISE, _MOST_NOISE = 2, 3
_STIR = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """What an observation of the program as written consists of.

    Args:
        steps: Steps of the trajectory.
        noise: Passes from which its noise is taken; 0 for none.
        is_swayed: Whether it trains once more from rounded weights.
        counts_flops: Whether floating-point operations are counted.
    """

    steps: int
    noise: int
    is_swayed: bool
    counts_flops: bool


ALL_PASSES = Passes(
    steps=TRAJECTORY_STEPS, noise=_MOST_NOISE, is_swayed=True, counts_flops=True
)
"""A whole observation."""


def passes_within(number: float, *, has_dropout: bool, may_sway: bool) -> Passes:
    """Returns what to observe in so many passes after the first steps.

    A pass that shows whether clipping and learning rates are obeyed comes first, and is
    never left out.

    Args:
        number: Passes that there is time for.
        has_dropout: Whether the program has dropout, which is looked at in two more.
        may_sway: Whether it can be trained again from its start.

    Example:
        >>> passes_within(0, has_dropout=False, may_sway=True)
        Passes(steps=3, noise=0, is_swayed=False, counts_flops=False)
        >>> passes_within(15, has_dropout=False, may_sway=True)
        Passes(steps=6, noise=3, is_swayed=True, counts_flops=True)
        >>> passes_within(1000, has_dropout=True, may_sway=True) == ALL_PASSES
        True
    """
    left = number - 1 - (_STIR if has_dropout else 0)
    noise, is_swayed, counts_flops, more = 0, False, False, 0
    if left >= _NOISE:
        noise, left = _NOISE, left - _NOISE
    if may_sway and left >= FIRST_STEPS:
        is_swayed, left = True, left - FIRST_STEPS
    if left >= 1:
        counts_flops, left = True, left - 1
    if noise and left >= 1:
        noise, left = _MOST_NOISE, left - 1
    # Each further step is made again from rounded weights.
    each = 2 if is_swayed else 1
    if noise and (is_swayed or not may_sway):
        more = min(math.floor(max(left, 0) / each), TRAJECTORY_STEPS - FIRST_STEPS)
    return Passes(
        steps=FIRST_STEPS + more,
        noise=noise,
        is_swayed=is_swayed,
        counts_flops=counts_flops,
    )
