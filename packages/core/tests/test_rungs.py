"""How long a trial runs, decided from scores alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core.search.rungs import RUNGS, next_rung

SCORES = st.floats(1e-6, 1e6)
LAST = len(RUNGS) - 1


def test_rungs_grow_and_never_are_a_single_step():
    steps = [rung.bouts * rung.steps for rung in RUNGS]
    assert steps == sorted(steps)
    assert all(rung.steps > 1 for rung in RUNGS)


@given(SCORES, st.integers(0, LAST - 1), st.floats(1.0, 2.0))
def test_baseline_runs_every_rung(score, rung, spread):
    found = next_rung(rung, best=score, usual=score, leader=None, spread=spread)
    assert found == rung + 1


@given(SCORES, SCORES, st.floats(1.0, 3.0))
def test_last_rung_is_the_last(best, leader, spread):
    assert next_rung(LAST, best, best, leader, spread) is None


@given(SCORES, st.integers(0, LAST - 1), st.floats(1.0, 3.0))
def test_plan_is_outrun_when_even_its_best_step_is_far_behind(leader, rung, spread):
    behind = leader / 1.2
    assert next_rung(rung, behind, behind, leader, spread) is None


@given(SCORES, st.floats(1.0, 1.1))
def test_plan_whose_best_step_could_lead_is_not_dropped_on_the_first_rung(
    leader, lucky
):
    # Its usual steps were slow, as the first ones are.
    assert next_rung(0, leader * lucky, leader / 3.0, leader, 1.0) == 1


@pytest.mark.parametrize(
    ("usual", "spread", "expected"),
    [(10.0, 1.0, 2), (9.6, 1.0, 2), (9.0, 1.0, None), (9.0, 1.5, 2)],
)
def test_close_or_busy_plans_are_measured_longest(usual, spread, expected):
    assert next_rung(1, best=10.0, usual=usual, leader=10.0, spread=spread) == expected
