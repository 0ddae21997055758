"""The model of speeds: it keeps what was measured, and knows pairs."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drivetrain_search.surrogate import (
    Prediction,
    Surrogate,
    expected_improvement,
)

SLOTS = ["a", "b", "c"]
EVERY = [
    {s: v for s, v in zip(SLOTS, values, strict=True) if v is not None}
    for values in itertools.product((None, 1, 2), repeat=3)
]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=12), st.randoms())
def test_surrogate_remembers_what_was_measured(speeds, draw):
    tried = draw.sample(EVERY, len(speeds))
    model = Surrogate(tried, speeds, SLOTS)
    for speed, found in zip(speeds, model.predict(tried), strict=True):
        assert found.mean == pytest.approx(math.log(speed), abs=0.1)
        assert found.deviation < 0.05


def test_surrogate_is_less_sure_of_what_is_farther():
    model = Surrogate([{}, {"a": 1}], [1.0, 2.0], SLOTS)
    near, far = model.predict([{"a": 1, "b": 1}, {"a": 2, "b": 2, "c": 2}])
    assert near.deviation < far.deviation


def test_surrogate_learns_that_a_slot_does_not_matter():
    tried = [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"b": 2}, {"a": 1, "b": 2}]
    model = Surrogate(tried, [1.0, 3.0, 1.0, 3.0, 1.0, 3.0], SLOTS)
    (found,) = model.predict([{"a": 1, "b": 2, "c": 0}])
    assert found.mean > 0.5
    without, with_b = model.predict([{"a": 1}, {"a": 1, "b": 2}])
    assert without.mean == pytest.approx(with_b.mean, abs=0.02)


def test_surrogate_of_a_single_trial_predicts_it_everywhere():
    model = Surrogate([{}], [5.0], SLOTS)
    assert all(p.mean == pytest.approx(math.log(5.0)) for p in model.predict(EVERY))


def test_surrogate_of_no_plans_predicts_none():
    assert Surrogate([{}], [5.0], SLOTS).predict([]) == []


@given(st.floats(-1.0, 1.0), st.floats(0.0, 1.0), st.floats(-1.0, 1.0))
@example(0.0, 0.0360768, 0.296875)
def test_expected_improvement_is_at_least_the_mean_gain(mean, deviation, best):
    gain = expected_improvement(Prediction(mean, deviation), best)
    assert gain >= 0.0
    assert gain >= mean - best - 1e-12
