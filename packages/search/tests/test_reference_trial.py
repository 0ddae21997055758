"""The baseline beside the trials: what it says of the machine, and when it is gone."""

from __future__ import annotations

import pytest

from drivetrain_core import Code, Measurement
from drivetrain_core.objective import throughput
from drivetrain_search.process.trial import Failure
from drivetrain_search.race import quiet_score, race
from drivetrain_search.reference_trial import ReferenceTrial, corrected
from drivetrain_search.stopping import turn_of

TURN = turn_of(0.1)
LEADER = Measurement(step_times_s=(0.05,) * 8, samples_per_step=10)
FIRST = Measurement(step_times_s=(0.1,) * 8, samples_per_step=10)


class Session:
    """A session whose steps take what a test says."""

    def __init__(self, step_s):
        self.step_s, self.asked = step_s, 0

    def measure(self, min_steps, min_seconds):
        self.asked += 1
        if self.step_s is None:
            raise Failure(Code.CRASH, "gone")
        return Measurement(step_times_s=(self.step_s,) * min_steps, samples_per_step=10)


@pytest.mark.parametrize(
    ("now", "speed"),
    [(0.1, 1.0), (0.102, 1.0), (0.2, 0.5), (0.08, 1.25), (1.0, 0.5), (0.01, 2.0)],
)
def test_anchor_tells_how_fast_the_machine_is(now, speed):
    assert ReferenceTrial(Session(now), FIRST).speed_now(TURN) == pytest.approx(speed)


def test_anchor_that_dies_is_left_alone():
    session = Session(None)
    reference = ReferenceTrial(session, FIRST)
    assert [reference.speed_now(TURN) for _ in range(3)] == [1.0] * 3
    assert session.asked == 1


@pytest.mark.parametrize(("now", "slowdown"), [(0.1, 1.0), (0.05, 1.0), (0.9, 9.0)])
def test_anchor_tells_by_how_much_the_machine_is_slower(now, slowdown):
    assert ReferenceTrial(Session(now), FIRST).slowdown_now() == pytest.approx(slowdown)


def test_anchor_that_is_gone_knows_of_no_slowdown():
    session = Session(None)
    reference = ReferenceTrial(session, FIRST)
    assert [reference.slowdown_now() for _ in range(2)] == [1.0, 1.0]
    assert session.asked == 1


def test_plan_on_a_slow_minute_is_given_back_what_it_lost():
    plan, reference = Session(0.1), ReferenceTrial(Session(0.2), FIRST)
    measured, outrun = race(
        plan, throughput, LEADER, reference, step_s=0.1, limit_s=3.0
    )
    assert quiet_score(throughput, measured) == pytest.approx(200.0)
    assert not outrun


def test_each_bout_is_corrected_by_what_is_beside_it():
    class Waning(Session):
        """A machine that slows down with every bout, for plan and baseline alike."""

        def measure(self, min_steps, min_seconds):
            self.step_s *= 1.02
            return super().measure(min_steps, min_seconds)

    plan, reference = Waning(0.1), ReferenceTrial(Waning(0.1), FIRST)
    measured, _ = race(plan, throughput, FIRST, reference, step_s=0.1, limit_s=1.5)
    assert quiet_score(throughput, measured) == pytest.approx(100.0, rel=0.07)


def test_correction_keeps_all_but_the_times():
    found = corrected(FIRST, 0.5)
    assert set(found.step_times_s) == {0.05}
    assert found.samples_per_step == FIRST.samples_per_step
