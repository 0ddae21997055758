"""What a trial is expected to take, and how a budget is divided."""

from __future__ import annotations

import pytest

from drivetrain_core import Choice, Measurement
from drivetrain_search.phase_shares import PhaseShares, fits_beside
from drivetrain_search.report.record import TrialRecord
from drivetrain_search.time_budget import final_steps, set_seconds, warm_steps
from drivetrain_search.trial_cost import TrialCost

WHOLE = (Choice("compile", {"scope": "whole"}),)
FUSED = (Choice("optimizer_impl", {"kind": "fused"}),)
SHARES = PhaseShares(180.0)


def record(choices, step_s, setup_s):
    measured = Measurement(
        step_times_s=(step_s,) * 4, samples_per_step=8, setup_s=setup_s
    )
    return TrialRecord(name="t01", choices=choices, seconds=1.0, measurement=measured)


def test_without_a_baseline_a_trial_takes_a_minute():
    assert TrialCost([], SHARES).seconds(FUSED) == 60.0


@pytest.mark.parametrize("step_s", [0.001, 0.7, 5.0])
def test_trial_takes_its_setup_its_first_steps_and_its_turns(step_s):
    expected = TrialCost([record((), step_s, 2.0)], SHARES).seconds(FUSED)
    assert 2.0 + 5 * step_s <= expected < 2.0 + 5 * step_s + 6.0


def test_what_compiles_costs_what_it_cost_before():
    base, compiled = record((), 0.1, 1.0), record(WHOLE, 0.1, 30.0)
    cost = TrialCost([base], SHARES)
    assert cost.seconds(WHOLE) > cost.seconds(FUSED) + 10.0
    seen = TrialCost([base, compiled], SHARES)
    assert seen.seconds((*WHOLE, *FUSED)) == pytest.approx(
        seen.seconds(FUSED) - 1.0 + 30.0
    )


def test_noise_and_gain_decide_how_long_a_final_is():
    def steps(step_s=0.1, noise=0.15, gain=0.2):
        return final_steps(step_s, noise, gain, 180.0)

    assert steps(noise=0.01) == 1
    assert steps(noise=0.01) < steps() < steps(noise=0.5) == 20
    assert steps(gain=1.0) < steps() < steps(gain=0.1)
    # What the budget allows, however little that shows.
    assert steps(step_s=5.0, noise=0.3) == 1
    assert [warm_steps(s) for s in (0.001, 0.1, 0.7, 30.0)] == [3, 3, 1, 1]


def test_end_of_a_slow_search_takes_few_steps():
    slow = record((), 0.7, 2.0).measurement
    # Two plans, each warmed in one step and timed in two turns of two.
    assert set_seconds(slow, slow, 1, 2) == pytest.approx(1.25 * 4.0 + 2 * 5 * 0.7)


def test_shares_leave_most_of_a_budget_to_trials():
    shares = PhaseShares(180.0)
    assert shares.observed_s < shares.baseline_s == 27.0
    assert shares.baseline_s + shares.forecasts_s + shares.end_s < 0.55 * 180.0
    assert fits_beside(0.7, 180.0)
    assert not fits_beside(5.0, 180.0)
