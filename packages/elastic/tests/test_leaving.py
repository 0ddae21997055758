"""How a node ends that leaves, and when ranks leave a world that nobody follows."""

import pytest

from drivetrain_elastic.decisions.leaving import NO_CHECKPOINTER, judge_leaving
from drivetrain_elastic.decisions.membership import (
    MembershipConfig,
    MembershipState,
    Status,
    Worker,
    next_world,
)

SAFE = {"failures": [""], "num_left": 0, "has_failed": False, "owes_save": True}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"failures": [NO_CHECKPOINTER]}, ""),
        ({"failures": []}, "no checkpoint of its last step is durable"),
        ({"failures": [], "owes_save": False}, ""),
        ({"failures": ["", "full"]}, "its checkpoint has failed: full"),
        ({"num_left": 2}, "2 workers did not leave in time"),
        ({"has_failed": True}, "a worker has failed as it left"),
    ],
)
def test_what_may_be_lost_is_told(changes, says):
    assert judge_leaving(**SAFE | changes) == says


def pair(least, unit=1):
    """Returns the state of two nodes with `unit` workers each, which train, and the config."""
    config = MembershipConfig(min_workers=least, max_workers=2 * unit, unit=unit)
    state = MembershipState()
    for node in "ab":
        for slot in range(unit):
            state.add(Worker(f"{node}/{slot}", node, slot, Status.STANDBY))
    state.enter(next_world(0.0, state, config).world)
    for name in list(state.workers):
        state.set_has_state(name)
    return state, config


def leave(state, node):
    for name, worker in list(state.workers.items()):
        if worker.node == node:
            state.set_status(name, Status.LEAVING, 0.0)


@pytest.mark.parametrize("unit", [1, 2])
def test_all_that_leave_enter_a_world_of_nobody(unit):
    state, config = pair(unit, unit)
    leave(state, "a")
    assert {name[0] for name in next_world(1.0, state, config).world.members} == {"b"}
    leave(state, "b")
    verdict = next_world(1.0, state, config)
    assert (verdict.world.epoch, verdict.world.members) == (2, ())
    assert verdict.is_short
    assert verdict.world.broken_epoch == 0
    assert verdict.reason.startswith("without those that leave, 0 workers are ready")
    state.enter(verdict.world)
    assert next_world(1.0, state, config).world is None


def test_those_that_stay_with_the_state_let_a_node_go_that_the_job_needs():
    state, config = pair(2)
    leave(state, "b")
    verdict = next_world(1.0, state, config)
    assert verdict.world.members == ()
    state.enter(verdict.world)
    state.remove(["b/0"])
    state.add(Worker("c/0", "c", 0, Status.STANDBY))
    verdict = next_world(2.0, state, config)
    assert verdict.world.members == ("a/0", "c/0")


def test_node_with_the_state_waits_for_one_that_starts():
    state, config = pair(1)
    state.remove(["b/0"])
    state.enter(next_world(1.0, state, config).world)
    state.add(Worker("c/0", "c", 0))
    leave(state, "a")
    assert next_world(1.0, state, config).world is None
    state.set_status("c/0", Status.STANDBY, 1.0)
    assert next_world(5.0, state, config).world.members == ("a/0", "c/0")


def test_short_world_of_which_nobody_leaves_stands():
    state, config = pair(2)
    state.remove(["b/0"])
    assert next_world(1.0, state, config).world is None
