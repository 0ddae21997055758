"""Predicts the speed of plans that were not tried from those that were.

A Gaussian process over plans: two plans are alike as far as they give the same answers,
and how much an answer matters is learnt slot by slot from the trials themselves. So it
knows what a sum of single effects cannot: that two answers are worth more, or less,
together. (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
algorithm 2.1 and section 5.4.1; expected improvement of Jones et al., 1998, eq. 15.)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Answers", "Prediction", "Surrogate", "expected_improvement"]

Answers = Mapping[str, Hashable]
"""What a plan answers, by slot; a slot that is missing is left open."""

# By what part of their speed two trials of one plan may differ: which, is learnt.
_NOISE = (0.01, 0.02, 0.04)
# How alike two plans are that differ in one slot: nearly, half, hardly.
_LIKENESS = (0.998, 0.98, 0.9, 0.7, 0.4)
_SWEEPS = 2
_MIN_SPREAD = 0.05


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
        self._scale = max(float(values.std()), _MIN_SPREAD) ** 2
        self._differ = self._differences(self._tried)
        self._likeness = np.full(len(self._slots), 0.7)
        self._noise = _NOISE[1]
        self._learn()
        self._factor, self._weights = self._solved(self._likeness)

    def predict(self, plans: Sequence[Answers]) -> list[Prediction]:
        """Returns a prediction for each plan."""
        cross = self._scale * self._alike(self._differences(plans), self._likeness)
        means = cross @ self._weights + self._mean
        solved = np.linalg.solve(self._factor, cross.T)
        left = np.maximum(self._scale - (solved**2).sum(axis=0), 0.0)
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

    def _alike(self, differ: Any, likeness: Any) -> Any:
        return np.where(differ, likeness, 1.0).prod(axis=2)

    def _solved(self, likeness: Any) -> tuple[Any, Any]:
        matrix = self._scale * self._alike(self._differ, likeness)
        factor = np.linalg.cholesky(matrix + self._noise**2 * np.eye(len(matrix)))
        half = np.linalg.solve(factor, self._values)
        return factor, np.linalg.solve(factor.T, half)

    def _likelihood(self, likeness: Any) -> float:
        factor, weights = self._solved(likeness)
        logs = float(np.log(np.diag(factor)).sum())
        return -0.5 * float(self._values @ weights) - logs

    def _learn(self) -> None:
        for _ in range(_SWEEPS):
            for index in range(len(self._slots)):
                trials = []
                for value in _LIKENESS:
                    changed = self._likeness.copy()
                    changed[index] = value
                    trials.append((self._likelihood(changed), value))
                self._likeness[index] = max(trials)[1]
            found = []
            for self._noise in _NOISE:
                found.append((self._likelihood(self._likeness), self._noise))
            self._noise = max(found)[1]


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
    below = 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
    return gain * below + prediction.deviation * density
