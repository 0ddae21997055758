"""Trials on recorded steps: who runs how long."""

from __future__ import annotations

import itertools

import pytest

from drivetrain_core import Measurement
from drivetrain_core._errors import ProgramError
from drivetrain_core.search.objective import throughput
from drivetrain_core.search.race import quiet_score, race
from drivetrain_core.search.rungs import RUNGS


class Steps:
    """Stands in for a session: endless steps of the given seconds."""

    def __init__(self, *times):
        self.times = itertools.cycle(times)
        self.asked = []

    def measure(self, min_steps, min_seconds):
        self.asked.append(min_steps)
        return Measurement(
            step_times_s=tuple(itertools.islice(self.times, min_steps)),
            samples_per_step=10,
        )


def test_baseline_is_measured_on_every_rung():
    session = Steps(0.1)
    measured, rung = race(session, throughput, None)
    assert session.asked == [r.steps for r in RUNGS for _ in range(r.bouts)]
    assert rung == len(RUNGS) - 1
    assert len(measured.step_times_s) == sum(r.steps * r.bouts for r in RUNGS)


def test_slow_plan_is_dropped_after_the_first_rung():
    session = Steps(0.2)
    measured, rung = race(session, throughput, leader=100.0)
    assert (session.asked, rung) == ([RUNGS[0].steps], 0)
    assert quiet_score(throughput, measured) == 50.0


def test_plan_that_is_slow_at_first_catches_up():
    session = Steps(*[0.3] * 3, 0.1, *[0.1] * 40)
    measured, _ = race(session, throughput, leader=100.0)
    assert quiet_score(throughput, measured) == pytest.approx(100.0)


def test_race_is_run_for_the_objective():
    session = Steps(0.1)

    def memory(measured):
        assert len(measured.step_times_s) == 1
        return 1.0

    race(session, memory, leader=1.2)
    assert session.asked == [RUNGS[0].steps]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "fast", True])
def test_objective_that_is_no_positive_number_is_named(value):
    with pytest.raises(ProgramError, match="objective must return a positive number"):
        race(Steps(0.1), lambda _: value, None)
