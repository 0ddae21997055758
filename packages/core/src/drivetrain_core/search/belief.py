"""How fast a plan is believed to be: by its own trial, by all others, and by the final.

Two processes of one plan differ by some percent as long as they live, so that the fastest
of many trials is partly the luckiest. The model of all trials knows what their noise is,
and draws a lucky one back to what the others say of its answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core._registry import find
from drivetrain_core.search.surrogate import (
    Prediction,
    Surrogate,
    expected_improvement,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from drivetrain_core._optimization import Choice

__all__ = ["Beliefs", "by_slot", "gain_over", "revised"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Beliefs:
    """What a set of trials says of their plans.

    Args:
        plans: A prediction of each plan's log speed.
        noise: By what part two processes of one plan differ.
    """

    plans: Mapping[tuple[Choice, ...], Prediction]
    noise: float

    @classmethod
    def of(cls, scores: Mapping[tuple[Choice, ...], float]) -> Beliefs:
        """Returns what trials say, from the score of each; there is at least one.

        Example:
            >>> from drivetrain_core import Choice
            >>> plan = (Choice("micro_batch", {"num": 2}),)
            >>> found = Beliefs.of({(): 1.0, plan: 2.0})
            >>> found.plans[plan].mean > found.plans[()].mean
            True
        """
        answers = [by_slot(plan) for plan in scores]
        slots = sorted({slot for each in answers for slot in each})
        model = Surrogate(answers, list(scores.values()), slots)
        plans = dict(zip(scores, model.predict(answers), strict=True))
        return cls(plans=plans, noise=model.noise)


def by_slot(plan: Sequence[Choice]) -> dict[str, Hashable]:
    """Returns a plan's answers by the names of their slots."""
    return {find(choice.name).slot.value: choice for choice in plan}


def revised(belief: Prediction, speeds: Sequence[float], noise: float) -> Prediction:
    """Returns the log speed that is believed after further processes of a plan.

    Args:
        belief: What was believed before.
        speeds: The speed of each process, in the unit of the belief.
        noise: By what part two processes of one plan differ.

    Example:
        >>> round(revised(Prediction(0.0, 0.02), [math.exp(0.1)], 0.02).mean, 6)
        0.05
        >>> revised(Prediction(0.3, 0.02), [], 0.02)
        Prediction(mean=0.3, deviation=0.02)
    """
    before = 1.0 / max(belief.deviation, 1e-3) ** 2
    each = 1.0 / noise**2
    total = belief.mean * before + sum(math.log(s) for s in speeds) * each
    weight = before + each * len(speeds)
    return Prediction(total / weight, 1.0 / math.sqrt(weight))


def gain_over(best: Prediction, other: Prediction) -> float:
    """Returns by what part another plan is expected to beat the one that seems best.

    Example:
        >>> round(gain_over(Prediction(0.0, 0.03), Prediction(0.0, 0.04)), 3)
        0.02
    """
    apart = math.hypot(best.deviation, other.deviation)
    return expected_improvement(Prediction(other.mean, apart), best.mean)
