"""The schedule of learning rates that all methods share."""

from __future__ import annotations

import math


def factor_of(step: int, num_steps: int, warmup: float) -> float:
    """Returns the factor of the learning rate: a linear rise, then half a cosine.

    Args:
        step: The step to be taken, from 0.
        num_steps: Of the run.
        warmup: Share of the steps in which it rises.

    Example:
        >>> [round(factor_of(step, 8, 0.25), 2) for step in range(8)]
        [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """
    rising = max(1, round(warmup * num_steps))
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(1, num_steps - rising)
    return 0.5 * (1 + math.cos(math.pi * done))
