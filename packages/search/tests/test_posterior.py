"""What is believed of plans: their own trials, drawn towards what the others say."""

from __future__ import annotations

import math

import pytest

from drivetrain_core import Choice
from drivetrain_search.posterior import (
    by_slot,
    gain_over,
    posteriors_of,
    process_noise,
    revised,
)
from drivetrain_search.surrogate import Prediction

FUSED = Choice("optimizer_impl", {"kind": "fused"})
THREAD = Choice("cpu_threads", {"num": 1})
BF16 = Choice("precision", {"dtype": "bf16_autocast"})


def test_answers_go_by_slot():
    assert by_slot((BF16, FUSED)) == {"precision": BF16, "optimizer_impl": FUSED}


def test_lucky_trial_is_drawn_back_to_what_the_others_say():
    # Fused is worth nothing in three pairs of plans, and 8% in one lucky trial.
    scores = {
        (): 1.0,
        (FUSED,): 1.0,
        (THREAD,): 1.2,
        (THREAD, FUSED): 1.2,
        (BF16,): 1.5,
        (BF16, FUSED): 1.5,
        (THREAD, BF16): 1.8,
        (THREAD, BF16, FUSED): 1.8 * 1.08,
    }
    posteriors = posteriors_of(scores)
    lucky = posteriors[THREAD, BF16, FUSED].mean
    assert math.log(1.8) < lucky < math.log(1.8 * 1.07)


def test_belief_of_one_trial_is_that_trial():
    assert posteriors_of({(): 3.0})[()].mean == pytest.approx(math.log(3.0))


def test_belief_moves_with_each_process_and_less_when_they_are_noisy():
    before = Prediction(0.0, 0.05)
    once = revised(before, [math.exp(0.1)], 0.02)
    twice = revised(before, [math.exp(0.1)] * 2, 0.02)
    noisy = revised(before, [math.exp(0.1)], 0.04)
    assert 0.0 < noisy.mean < once.mean < twice.mean < 0.1
    assert noisy.deviation > once.deviation > twice.deviation


def test_noise_of_processes_shows_beside_what_is_usual():
    steady = [[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]] * 3
    shared = [[(1.0, 1.2), (2.0, 2.4), (3.0, 3.6)], *steady[1:]]
    noisy = [[(1.0, 1.1), (2.0, 1.9), (3.0, 3.2)]] * 3
    assert process_noise(steady) < process_noise([]) < process_noise(noisy)
    assert process_noise(shared) == pytest.approx(process_noise(steady))
    assert process_noise([[(1.0, 5.0)]]) == process_noise([])


def test_second_plan_may_gain_as_long_as_it_is_uncertain():
    best, second = Prediction(0.02, 0.01), Prediction(0.0, 0.01)
    assert 0.0 < gain_over(best, second) < gain_over(best, Prediction(0.0, 0.05))
    assert gain_over(best, second) < gain_over(Prediction(0.02, 0.05), second)
