"""Predicts the speed of plans that were not tried from those that were.

A Gaussian process over plans, in the logarithm of their speed. It is a sum of two: one in
which each slot's answer has an effect of its own, and one in which two plans are alike as
far as they give the same answers, which holds what answers are worth only together. How
large each part is, and how much each slot matters in it, is learnt from the trials; before
they say otherwise, effects add up. (Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, algorithm 2.1 and section 5.4.1; sums of kernels: Duvenaud et al., 2011,
arXiv 1112.4394; expected improvement: Jones et al., 1998, eq. 15.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Answers = Mapping[str, Hashable]
"""What a plan answers, by slot; a slot that is missing is left open."""

# By what part of their speed two trials of one plan differ. Plans that were tried once do
# not say it: what answers are worth together can explain any noise.
_NOISE = 0.03
# The usual size of an answer's own effect, as a part of the speed.
_EFFECTS = (0.01, 0.05, 0.15, 0.4)
# The usual size of what answers are worth together.
_TOGETHER = (0.04, 0.1, 0.25)
# How alike two plans are in that if they differ in one slot: nearly, half, hardly.
_LIKENESS = (0.99, 0.9, 0.6, 0.3)
# Of the level that all effects add to, nothing is known.
_LEVEL = 1.0
_SWEEPS = 2


@dataclass(frozen=True, slots=True)
class Prediction:
    """A speed that was not measured.

    Args:
        mean: The natural logarithm of the speed.
        deviation: Its standard deviation.
    """

    mean: float
    deviation: float


class Surrogate:
    """A model of log speed, fitted to trials.

    Args:
        tried: The answers of each plan that was tried; at least one.
        speeds: Their speeds, all positive.
        slots: Every slot that plans may differ in.

    Example:
        >>> tried = [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}]
        >>> model = Surrogate(tried, [1.0, 2.0, 1.0, 2.0], ["a", "b", "c"])
        >>> fast, slow = model.predict([{"a": 1, "c": 1}, {"c": 1}])
        >>> fast.mean > slow.mean
        True
    """

    def __init__(
        self, tried: Sequence[Answers], speeds: Sequence[float], slots: Sequence[str]
    ) -> None:
        """Learns how much each slot matters, by the likelihood of the trials."""
        self._tried, self._slots = list(tried), list(slots)
        values = np.log(np.asarray(speeds, dtype=float))
        self._mean = float(values.mean())
        self._values = values - self._mean
        self._differ = self._differences(self._tried)
        self._sizes = _Sizes(
            effects=(_EFFECTS[1],) * len(self._slots),
            together=_TOGETHER[0],
            likeness=(_LIKENESS[2],) * len(self._slots),
        )
        self._learn()
        self._factor, self._weights = self._solved(self._sizes)

    def predict(self, plans: Sequence[Answers]) -> list[Prediction]:
        """Returns a prediction for each plan."""
        cross = self._sizes.covariance(self._differences(plans))
        means = cross @ self._weights + self._mean
        solved = np.linalg.solve(self._factor, cross.T)
        left = np.maximum(self._sizes.variance - (solved**2).sum(axis=0), 0.0)
        return [
            Prediction(float(mean), math.sqrt(float(variance)))
            for mean, variance in zip(means, left, strict=True)
        ]

    def _differences(self, plans: Sequence[Answers]) -> Any:
        """Returns an array of (plan, trial, slot): whether their answers differ."""
        return np.array(
            [
                [[a.get(s) != b.get(s) for s in self._slots] for b in self._tried]
                for a in plans
            ],
            dtype=bool,
        ).reshape(len(plans), len(self._tried), len(self._slots))

    def _solved(self, sizes: _Sizes) -> tuple[Any, Any]:
        matrix = sizes.covariance(self._differ)
        factor = np.linalg.cholesky(matrix + _NOISE**2 * np.eye(len(matrix)))
        half = np.linalg.solve(factor, self._values)
        return factor, np.linalg.solve(factor.T, half)

    def _likelihood(self, sizes: _Sizes) -> float:
        factor, weights = self._solved(sizes)
        logs = float(np.log(np.diag(factor)).sum())
        return -0.5 * float(self._values @ weights) - logs

    def _learn(self) -> None:
        """Climbs the likelihood, one size after the other."""
        for _ in range(_SWEEPS):
            for name, index, values in self._sizes.grid():
                changed = [self._sizes.changed(name, index, v) for v in values]
                self._sizes = max(changed, key=self._likelihood)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What is learnt: how large effects are, single and together."""

    effects: tuple[float, ...]
    together: float
    likeness: tuple[float, ...]

    @property
    def variance(self) -> float:
        """The variance of a plan of which nothing is known."""
        return float(_LEVEL + sum(e**2 for e in self.effects) + self.together**2)

    def covariance(self, differ: Any) -> Any:
        """Returns it for plans that differ in the slots of the last dimension."""
        single = np.where(differ, 0.0, np.square(self.effects)).sum(axis=2)
        alike = np.where(differ, self.likeness, 1.0).prod(axis=2)
        return _LEVEL + single + self.together**2 * alike

    def grid(self) -> list[tuple[str, int | None, tuple[float, ...]]]:
        """Returns each size, with what it may be."""
        slots = range(len(self.effects))
        return [
            *(("effects", index, _EFFECTS) for index in slots),
            ("together", None, _TOGETHER),
            *(("likeness", index, _LIKENESS) for index in slots),
        ]

    def changed(self, name: str, index: int | None, value: float) -> _Sizes:
        """Returns the sizes with another value of one."""
        new: Any = value
        if index is not None:
            before: tuple[float, ...] = getattr(self, name)
            new = (*before[:index], value, *before[index + 1 :])
        return dataclasses.replace(self, **{name: new})


def expected_improvement(prediction: Prediction, best: float) -> float:
    """Returns by what part a plan is expected to beat the best speed so far.

    Args:
        prediction: Of the plan.
        best: The natural logarithm of the best speed.

    Example:
        >>> round(expected_improvement(Prediction(0.1, 0.0), 0.0), 3)
        0.1
        >>> expected_improvement(Prediction(-0.1, 0.0), 0.0)
        0.0
    """
    gain = prediction.mean - best
    if prediction.deviation == 0.0:
        return max(gain, 0.0)
    z = gain / prediction.deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    # By erfc, which keeps its digits far below the best; what is left is rounding.
    below = 0.5 * math.erfc(-z / math.sqrt(2.0))
    return max(gain * below + prediction.deviation * density, 0.0)
