"""When a trial has said enough, of steps that are made up."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_search.stopping import (
    Verdict,
    half_width,
    is_outrun,
    step_noise,
    turn_of,
    verdict,
)


def noisy(step_s, number, noise, seed):
    draw = random.Random(seed)
    return [step_s * math.exp(draw.gauss(0.0, noise)) for _ in range(number)]


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_noise_is_learnt_from_many_steps(noise):
    found = step_noise(noisy(0.1, 400, noise, seed=1))
    # Steps above the upper quartile count as much as that.
    assert 0.6 * noise < found < 1.1 * noise


def test_one_disturbed_step_of_many_is_no_noise():
    assert step_noise([1.0] * 20 + [9.0]) == pytest.approx(step_noise([1.0] * 21))


@given(st.floats(0.0, 0.5), st.integers(1, 1000), st.integers(1, 1000))
def test_interval_narrows_with_steps_and_widens_with_noise(noise, few, more):
    narrow = half_width(noise, few + more)
    assert narrow <= half_width(noise, few) <= half_width(noise + 0.1, few)
    # Another process of the plan differs, however long this one was watched.
    assert narrow >= half_width(0.0, 10**9) > 0.0


@pytest.mark.parametrize("step_s", [1e-3, 0.7, 60.0])
@pytest.mark.parametrize("seed", range(20))
def test_twice_as_slow_is_seen_in_one_to_three_steps(step_s, seed):
    steps = noisy(2.0 * step_s, 2, 0.05, seed)
    bound_s = step_s * (1.0 + half_width(0.05, 12))
    assert any(is_outrun(steps[:n], bound_s, 0.05) for n in (1, 2))


@pytest.mark.parametrize("seed", range(50))
def test_as_fast_as_the_leader_is_hardly_ever_outrun(seed):
    bound_s = 1.0 + half_width(0.05, 12)
    steps = noisy(1.0, 2, 0.05, seed)
    assert not is_outrun(steps[:1], bound_s, 0.05)
    assert not is_outrun(steps, bound_s, 0.05)


def test_nothing_is_outrun_before_its_second_step():
    assert not is_outrun([], 1.0, 0.05)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, Verdict.GOES_ON),
        ({"best": 8.9}, Verdict.OUTRUN),
        ({"leader": None, "best": 0.1}, Verdict.GOES_ON),
        ({"width": 0.005}, Verdict.SETTLED),
        ({"width": 0.005, "turns": 1}, Verdict.GOES_ON),
        ({"seconds": 4.0}, Verdict.SETTLED),
        ({"best": 8.9, "seconds": 4.0}, Verdict.OUTRUN),
    ],
)
def test_trial_goes_on_until_it_is_outrun_sure_or_late(changed, expected):
    few = {"best": 9.5, "leader": 9.0, "width": 0.05, "turns": 3, "seconds": 1.0}
    assert verdict(**few | changed, limit_s=4.0) is expected


@given(st.floats(1e-6, 1e4))
def test_turn_is_about_a_third_of_a_second_or_a_step(step_s):
    turn = turn_of(step_s)
    assert 1 <= turn.steps <= 4
    assert turn.steps * step_s < 0.35 + step_s
