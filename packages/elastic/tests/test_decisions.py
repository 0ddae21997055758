"""What is decided about nodes, workers and the end of a job, without any of them."""

import pytest

from drivetrain_elastic.decisions.ending import Ending, Results, judge_ending
from drivetrain_elastic.decisions.liveness import Health, Signs, judge_liveness
from drivetrain_elastic.decisions.membership import (
    MembershipState,
    Status,
    Verdict,
    Worker,
    World,
)
from drivetrain_elastic.decisions.presence import judge_presence
from drivetrain_elastic.decisions.respawn import judge_respawn

KEEP = Verdict(None, "nothing has changed")
SHORT = Verdict(None, "1 workers are ready, of 2 at least", is_short=True)


def state(**statuses):
    found = MembershipState(world=World(1, ("a", "b"), "ready"))
    for slot, (name, status) in enumerate(statuses.items()):
        found.add(Worker(name, "n", slot, status))
    return found


def ending(results, verdict=KEEP, now_s=10.0, **statuses):
    return judge_ending(now_s, state(**statuses), results, verdict, patience_s=60.0)


def test_node_counts_as_lost_at_the_time_out_and_not_before():
    heard_s = {"a": 8.0, "b": 8.001}
    presence = judge_presence(10.0, heard_s, timeout_s=2.0)
    assert presence.lost == {"a": 2.0}
    assert presence.wait_s == pytest.approx(0.001)
    assert judge_presence(10.0, {}, timeout_s=2.0) == ({}, None)


def test_job_ends_when_all_members_have_finished_or_are_gone():
    member = Status.MEMBER
    done = Results(finished={"a"})
    assert ending(done, a=member, b=member) is None
    assert ending(done, a=member) == Ending(0, "all workers have finished")
    failed = Results(finished={"a"}, failed=["b ended with exit code 3"])
    assert ending(failed, a=member) == Ending(
        1, "training has finished, but b ended with exit code 3"
    )


def test_worker_that_came_as_the_others_finished_is_not_waited_for():
    late = state(a=Status.MEMBER, b=Status.MEMBER)
    done = Results(finished={"a"})
    assert judge_ending(1.0, late, done, KEEP, patience_s=60.0) is None
    late.set_broken(1, "b: not all ranks came", 1.0)
    ending = judge_ending(1.0, late, done, KEEP, patience_s=60.0)
    assert ending == Ending(0, "all workers have finished")
    # One that has made steps is about to finish.
    late.set_has_state("b")
    assert judge_ending(1.0, late, done, KEEP, patience_s=60.0) is None


def test_job_with_too_few_workers_waits_while_somebody_may_come():
    given_up = Results(given_up=["b ended with exit code 3"], short_since_s=9.0)
    assert ending(given_up, SHORT, a=Status.STANDBY, c=Status.STARTING) == 59.0
    assert ending(given_up, SHORT, a=Status.STANDBY) == Ending(
        1, "1 workers are ready, of 2 at least: b ended with exit code 3"
    )
    lost = Results(short_since_s=9.0)
    assert ending(lost, SHORT, a=Status.STANDBY) == 59.0
    assert ending(lost, SHORT, now_s=69.0, a=Status.STANDBY).exit_code == 1


def test_deaths_in_a_row_make_the_pauses_longer_and_use_up_the_budget():
    budget = {"max_restarts": 20, "window_s": 1000.0, "quick_s": 5.0}
    deaths, waits = [], []
    for at in range(10):
        deaths.append(10.0 + at)
        waits.append(judge_respawn(deaths, **budget).wait_s)
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert judge_respawn([*deaths, 100.0], **budget).wait_s == 0.0
    assert judge_respawn([1.0], **{**budget, "max_restarts": 0}).wait_s is None
    assert judge_respawn([1.0], **budget, is_hopeless=True).wait_s is None


@pytest.mark.parametrize(
    ("signs", "health"),
    [
        (Signs(0.4, 9.0, "S", "waiting", 99.0), Health.WELL),
        (Signs(2.0, 1.9, "T", "computing", 1.0), Health.FROZEN),
        (Signs(2.0, 1.5, "D", "computing", 1.0), Health.FROZEN),
        # It waits for a processor: the machine is busy.
        (Signs(2.0, 2.0, "R", "computing", 1.0), Health.WELL),
        # Some C code keeps the interpreter to itself.
        (Signs(9.0, 0.1, "S", "computing", 9.0), Health.WELL),
        (Signs(30.0, 0.1, "R", "computing", 9.0), Health.STUCK),
        (Signs(0.1, 0.1, "S", "computing", 30.0), Health.STUCK),
        # Who waits for others is not the one that is stuck.
        (Signs(0.1, 0.1, "S", "waiting", 30.0), Health.WELL),
    ],
)
def test_silence_and_slowness_are_told_apart(signs, health):
    found, why = judge_liveness(signs, frozen_s=2.0, stuck_s=30.0)
    assert (found, bool(why)) == (health, True)
