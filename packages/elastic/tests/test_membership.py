"""Worlds of ranks: who is in, in which order, and when they change."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_elastic.decisions.membership import (
    MembershipConfig,
    MembershipState,
    Status,
    Worker,
    can_do_without,
    next_world,
)


def config(least=2, most=4, **others):
    return MembershipConfig(min_workers=least, max_workers=most, **others)


def ready(*names):
    """Workers such as `a/0`, all standing by."""
    state = MembershipState()
    for name in names:
        node, slot = name.split("/")
        state.add(Worker(name, node, int(slot), Status.STANDBY))
    return state


def enter(state, settings, now_s=100.0):
    world = next_world(now_s, state, settings).world
    state.enter(world)
    return world


def test_first_world_waits_for_more_than_the_least_but_not_for_long():
    state = ready("a/0", "a/1")
    state.set_status("a/1", Status.STANDBY, 10.0)
    verdict = next_world(10.25, state, config(last_call_s=1.0))
    assert (verdict.world, verdict.wait_s) == (None, 0.75)
    world = next_world(11.0, state, config(last_call_s=1.0)).world
    assert (world.epoch, world.members) == (1, ("a/0", "a/1"))


def test_first_world_that_is_full_waits_for_nobody():
    state = ready("a/0", "a/1")
    state.set_status("a/1", Status.STANDBY, 10.0)
    assert next_world(10.0, state, config(2, 2)).world.members == ("a/0", "a/1")


def test_ranks_follow_nodes_as_they_came_and_slots():
    world = enter(ready("b/1", "a/1", "b/0", "a/0"), config())
    assert world.members == ("b/0", "b/1", "a/0", "a/1")


def test_survivors_go_on_at_once_and_a_standby_takes_the_place():
    state = ready("a/0", "a/1", "a/2", "a/3")
    enter(state, config())
    state.remove(["a/1"])
    assert enter(state, config()).members == ("a/0", "a/2", "a/3")
    state.add(Worker("a/1#2", "a", 1))
    assert next_world(0.0, state, config()).reason == "nothing has changed"
    state.set_status("a/1#2", Status.STANDBY, 0.0)
    world = enter(state, config())
    assert (world.epoch, world.members) == (3, ("a/0", "a/1#2", "a/2", "a/3"))
    assert world.reason == "a/1#2 is new"


def test_members_are_not_replaced_by_those_who_stand_by():
    state = ready("b/0", "b/1", "a/0", "a/1")
    state.nodes = ["a", "b"]
    state.set_status("a/0", Status.STARTING, 0.0)
    assert enter(state, config(2, 2, last_call_s=0)).members == ("a/1", "b/0")
    state.set_status("a/0", Status.STANDBY, 0.0)
    assert next_world(0.0, state, config(2, 2)).world is None


def test_who_is_leaving_is_left_out_by_name():
    state = ready("a/0", "a/1", "b/0")
    enter(state, config(last_call_s=0))
    state.set_status("a/1", Status.LEAVING, 0.0)
    world = enter(state, config())
    assert world.members == ("a/0", "b/0")
    assert world.reason == "a/1 is leaving"
    assert state.workers["a/1"].status == Status.LEAVING


def test_too_few_workers_wait_and_say_so():
    state = ready("a/0", "a/1")
    enter(state, config(last_call_s=0))
    state.remove(["a/0"])
    verdict = next_world(0.0, state, config())
    assert verdict.is_short
    assert verdict.reason == "1 workers are ready, of 2 at least"


def test_worlds_have_whole_units():
    state = ready("a/0", "a/1", "a/2", "a/3", "a/4")
    settings = config(2, 5, unit=2, last_call_s=0)
    assert len(enter(state, settings).members) == 4
    state.remove(["a/1", "a/4"])
    world = enter(state, settings)
    # The copy that lost one of its two waits until it is whole.
    assert world.members == ("a/2", "a/3")
    assert state.workers["a/0"].status == Status.STANDBY
    state.add(Worker("a/1#2", "a", 1, Status.STANDBY))
    assert enter(state, settings).members == ("a/0", "a/1#2", "a/2", "a/3")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"min_workers": 0}, "at least 1, got 0 and 1"),
        ({"unit": 0}, "at least 1, got 2 and 0"),
        ({"min_workers": 5}, "not be more than max_workers, got 5 and 4"),
        ({"min_workers": 3, "unit": 5}, "no multiple of unit 5 lies from 3 to 4"),
    ],
)
def test_config_says_what_contradicts(changes, says):
    with pytest.raises(ProgramError, match=says):
        MembershipConfig(**{"min_workers": 2, "max_workers": 4, **changes})


def copies_with_state(workers, unit):
    """Returns the places of whole copies all of whose workers have the state."""
    having = Counter((w.node, w.slot // unit) for w in workers if w.has_state)
    return {place for place, num in having.items() if num == unit}


def check_carriers(carriers, members, state, unit):
    """The state is never left behind with those who leave."""
    stay = copies_with_state([state.workers[name] for name in members], unit)
    leaving = [w for w in state.workers.values() if w.status == Status.LEAVING]
    could = copies_with_state(leaving, unit)
    workers = [state.workers[name] for name in carriers]
    if stay or not could:
        assert not carriers
    else:
        assert len(copies_with_state(workers, unit)) == 1
        assert len(carriers) == unit
        assert {one.status for one in workers} == {Status.LEAVING}


def test_one_who_leaves_hands_the_state_over_first():
    state = ready("a/0", "a/1")
    settings_ = config(2, 2, last_call_s=0, settle_s=0)
    enter(state, settings_)
    for name in ("a/0", "a/1"):
        assert state.set_has_state(name)
        assert not state.set_has_state(name)
        state.set_status(name, Status.LEAVING, 0.0)
    assert next_world(0.0, state, settings_).is_short
    state.add(Worker("b/0", "b", 0, Status.STANDBY))
    state.add(Worker("b/1", "b", 1, Status.STANDBY))
    world = enter(state, settings_)
    assert world.members == ("a/0", "b/0", "b/1")
    assert world.reason == (
        "a/1 is leaving; b/0, b/1 are new; a/0 is leaving when another one has the state"
    )
    # Not before somebody has made a step there.
    assert next_world(0.0, state, settings_).world is None
    state.set_has_state("b/1")
    assert enter(state, settings_).members == ("b/0", "b/1")


EVENTS = ["add", "ready", "lost", "leave", "step", "decide"]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data(), unit=st.integers(1, 3))
def test_worlds_keep_to_the_rules_whatever_happens(data, unit):
    least, most = 2, 7
    settings_ = config(least, most, unit=unit, last_call_s=0, settle_s=0)
    state, epoch, serial = MembershipState(), 0, 0
    for _ in range(30):
        what = data.draw(st.sampled_from(EVENTS))
        names = sorted(state.workers)
        if what == "add":
            node = data.draw(st.sampled_from("abc"))
            slots = {w.slot for w in state.workers.values() if w.node == node}
            slot = min(set(range(31)) - slots)
            state.add(Worker(f"{node}/{serial}", node, slot))
            serial += 1
        elif what == "ready" and names:
            name = data.draw(st.sampled_from(names))
            if state.workers[name].status == Status.STARTING:
                state.set_status(name, Status.STANDBY, 0.0)
        elif what == "lost" and names:
            state.remove(data.draw(st.sets(st.sampled_from(names))))
        elif what == "leave" and names:
            state.set_status(data.draw(st.sampled_from(names)), Status.LEAVING, 0.0)
        elif what == "step" and state.world is not None:
            for name in state.world.members:
                state.set_has_state(name)
        verdict = next_world(0.0, state, settings_)
        assert verdict.reason
        able = {
            name
            for name, one in state.workers.items()
            if one.status in {Status.MEMBER, Status.STANDBY}
        }
        if verdict.world is None:
            continue
        epoch += 1
        assert verdict.world.epoch == epoch
        if not verdict.world.members:
            # Too few would stay: those that leave do so, and nothing of the state is lost.
            assert verdict.is_short
            assert Status.LEAVING in {one.status for one in state.workers.values()}
            state.enter(verdict.world)
            continue
        members = tuple(n for n in verdict.world.members if n in able)
        check_carriers(set(verdict.world.members) - able, members, state, unit)
        assert least <= len(members) <= most
        assert len(members) % unit == 0
        copies = Counter(
            (state.workers[name].node, state.workers[name].slot // unit)
            for name in able
        )
        num_whole = sum(num == unit for num in copies.values())
        assert len(members) == min(num_whole, most // unit) * unit
        # Whoever is left of a copy that lost a part stands by.
        stayed = {
            name
            for name, one in state.workers.items()
            if one.status == Status.MEMBER
            and copies[one.node, one.slot // unit] == unit
        }
        assert stayed <= set(members) or set(members) <= stayed
        state.enter(verdict.world)
        assert next_world(0.0, state, settings_).world is None


def test_only_nodes_that_are_admitted_train():
    state = ready("a/0", "b/0", "c/0")
    state.admitted = frozenset({"a", "c"})
    assert enter(state, config(2, 3, last_call_s=0)).members == ("a/0", "c/0")
    state.admitted = frozenset({"a", "b", "c"})
    world = enter(state, config(2, 3))
    assert (world.members, world.reason) == (("a/0", "b/0", "c/0"), "b/0 is new")
    state.admitted = frozenset({"b", "c"})
    world = enter(state, config(2, 3))
    assert world.members == ("b/0", "c/0")
    assert (world.broken_epoch, state.workers["a/0"].status) == (0, Status.STANDBY)


def test_nobody_admitted_pauses_training_in_a_world_of_nobody():
    state = ready("a/0", "b/0")
    state.admitted = frozenset()
    verdict = next_world(0.0, state, config())
    assert (verdict.world, verdict.is_short) == (None, True)
    state.admitted = None
    enter(state, config(last_call_s=0))
    state.admitted = frozenset()
    verdict = next_world(0.0, state, config())
    assert (verdict.world.members, verdict.world.epoch) == ((), 2)
    assert verdict.is_short
    state.enter(verdict.world)
    assert next_world(0.0, state, config()).world is None
    assert {one.status for one in state.workers.values()} == {Status.STANDBY}
    state.admitted = frozenset({"a", "b"})
    world = enter(state, config())
    assert (world.epoch, world.members) == (3, ("a/0", "b/0"))


def test_a_node_that_alone_has_the_state_hands_it_over_before_it_stands_by():
    state = ready("a/0", "b/0")
    state.admitted = frozenset({"a"})
    enter(state, config(1, 2, last_call_s=0))
    state.set_has_state("a/0")
    state.admitted = frozenset({"b"})
    world = enter(state, config(1, 2))
    assert world.members == ("a/0", "b/0")
    state.set_has_state("b/0")
    assert enter(state, config(1, 2)).members == ("b/0",)


def test_a_job_can_do_without_a_node_if_others_are_enough():
    state = ready("a/0", "a/1", "b/0", "b/1")
    assert can_do_without("a", state, config(2, 4))
    assert not can_do_without("a", state, config(3, 4))
    state.set_status("b/0", Status.STARTING, 0.0)
    assert not can_do_without("a", state, config(2, 4))
