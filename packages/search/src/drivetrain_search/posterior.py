"""Posterior of a plan's step time: by its own trial, by all others, and by the final.

Two processes of one plan differ by some percent as long as they live, so that the fastest
of many trials is partly the luckiest. The model of all trials draws a lucky one back to
what the others say of its answers. How large the noise is shows in the final, where plans
that had a trial run in processes again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from drivetrain_core.extending import find
from drivetrain_search.surrogate import Prediction, Surrogate, expected_improvement

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from drivetrain_core import Choice

# What is usual of two processes, and how many observations that counts for.
_USUAL_NOISE, _USUAL_WEIGHT = 0.04, 4


Posteriors = Mapping[tuple["Choice", ...], Prediction]
"""What trials say of plans: a prediction of each one's log speed."""


def posteriors_of(scores: Mapping[tuple[Choice, ...], float]) -> Posteriors:
    """Returns what trials say, from the score of each; there is at least one.

    Example:
        >>> from drivetrain_core import Choice
        >>> plan = (Choice("micro_batch", {"num": 2}),)
        >>> found = posteriors_of({(): 1.0, plan: 2.0})
        >>> found[plan].mean > found[()].mean
        True
    """
    answers = [by_slot(plan) for plan in scores]
    slots = sorted({slot for each in answers for slot in each})
    model = Surrogate(answers, list(scores.values()), slots)
    return dict(zip(scores, model.predict(answers), strict=True))


def by_slot(plan: Sequence[Choice]) -> dict[str, Hashable]:
    """Returns a plan's answers by the names of their slots."""
    return {find(choice.name).slot.value: choice for choice in plan}


def revised(prior: Prediction, speeds: Sequence[float], noise: float) -> Prediction:
    """Returns the log speed that is believed after further processes of a plan.

    Args:
        prior: What was believed before.
        speeds: The speed of each process, in the unit of the prior.
        noise: By what part two processes of one plan differ.

    Example:
        >>> round(revised(Prediction(0.0, 0.02), [math.exp(0.1)], 0.02).mean, 6)
        0.05
        >>> revised(Prediction(0.3, 0.02), [], 0.02)
        Prediction(mean=0.3, deviation=0.02)
    """
    # The fastest of many is the luckiest: no posterior is surer than one process.
    before = 1.0 / max(prior.deviation, noise) ** 2
    each = 1.0 / noise**2
    total = prior.mean * before + sum(math.log(s) for s in speeds) * each
    weight = before + each * len(speeds)
    return Prediction(total / weight, 1.0 / math.sqrt(weight))


def process_noise(pairs: Iterable[Sequence[tuple[float, float]]]) -> float:
    """Returns by what part two processes of one plan differ.

    The trials alone do not say it: a model with interactions fits the noise of plans that
    were tried once. What a set of processes shares, such as a slow minute, cancels out.
    Beside few observations, what is usual counts too.

    Args:
        pairs: For each set of processes the speeds of its plans, in their trials and in
            the set.

    Example:
        >>> process_noise([])
        0.04
        >>> round(process_noise([[(1.0, 1.1), (2.0, 2.2), (3.0, 3.3)]]), 3)
        0.033
    """
    total, weight = _USUAL_WEIGHT * _USUAL_NOISE**2, _USUAL_WEIGHT
    for each in pairs:
        apart = [math.log(after / before) for before, after in each]
        if len(apart) > 1:
            # Both processes of a plan have the noise.
            total += statistics.variance(apart) * (len(apart) - 1) / 2
            weight += len(apart) - 1
    return math.sqrt(total / weight)


def gain_over(best: Prediction, other: Prediction) -> float:
    """Returns by what part another plan is expected to beat the one that seems best.

    Example:
        >>> round(gain_over(Prediction(0.0, 0.03), Prediction(0.0, 0.04)), 3)
        0.02
    """
    apart = math.hypot(best.deviation, other.deviation)
    return expected_improvement(Prediction(other.mean, apart), best.mean)
