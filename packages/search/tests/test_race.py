"""Trials on recorded steps: who runs how long."""

from __future__ import annotations

import itertools

import pytest

from drivetrain_core import Measurement
from drivetrain_core._errors import ProgramError
from drivetrain_core.objective import throughput
from drivetrain_search.race import quiet_score, race


def measured(*times):
    return Measurement(step_times_s=times, samples_per_step=10)


LEADER = measured(*[0.1] * 12)


class Steps:
    """Stands in for a session: endless steps of the given seconds."""

    def __init__(self, *times):
        self.times = itertools.cycle(times)
        self.asked = []

    def measure(self, min_steps, min_seconds):
        self.asked.append(min_steps)
        return measured(*itertools.islice(self.times, min_steps))


def raced(session, leader=LEADER, objective=throughput, step_s=0.1, limit_s=3.0):
    return race(session, objective, leader, step_s=step_s, limit_s=limit_s)


def test_baseline_is_measured_until_its_interval_is_narrow():
    calm, busy = Steps(0.1), Steps(0.1, 0.13, 0.09, 0.12)
    for session in (calm, busy):
        whole, outrun = raced(session, leader=None, limit_s=60.0)
        assert not outrun
        assert len(whole.step_times_s) == sum(session.asked)
    assert 3 <= len(calm.asked) < len(busy.asked)


def test_time_of_a_trial_ends_its_turns():
    session = Steps(1.0)
    whole, _ = raced(session, leader=measured(1.0), step_s=1.0, limit_s=2.0)
    assert session.asked == [1, 1]
    assert len(whole.step_times_s) == 2


def test_plan_that_is_twice_as_slow_is_dropped_after_its_first_turn():
    session = Steps(0.2)
    whole, outrun = raced(session, step_s=0.2)
    assert outrun
    assert session.asked == [2]
    assert quiet_score(throughput, whole) == 50.0


def test_plan_beside_the_leader_stays_in_the_race():
    _, outrun = raced(Steps(0.104))
    assert not outrun


def test_plan_that_is_slow_at_first_catches_up():
    session = Steps(0.16, 0.1, 0.15, 0.1, *[0.1] * 40)
    whole, outrun = raced(session)
    assert not outrun
    assert quiet_score(throughput, whole) == pytest.approx(100.0)


def test_race_is_run_for_the_objective():
    session = Steps(0.2)

    def memory(one):
        assert len(one.step_times_s) == 1
        return 1.0

    _, outrun = raced(session, objective=memory)
    assert not outrun
    assert len(session.asked) >= 3


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "fast", True])
def test_objective_that_is_no_positive_number_is_named(value):
    with pytest.raises(ProgramError, match="objective must return a positive number"):
        raced(Steps(0.1), leader=None, objective=lambda _: value)
