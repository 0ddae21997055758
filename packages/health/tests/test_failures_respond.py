"""What follows from failures, one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_health.failures import (
    LADDERS,
    Action,
    Diagnosis,
    FailureClass,
    Incident,
    Ladder,
    ResponseConfig,
    respond,
)

PLACE, PROCESS, NODE, STOP = Action


def series(*failures, every_s=10.0, config=None):
    """Returns what follows from failures: (class, cause, node) and perhaps a place."""
    past = []
    for number, (failure_class, cause, node, *place) in enumerate(failures):
        found = Diagnosis(
            FailureClass(failure_class), cause, node, "seen", place="".join(place)
        )
        action, reason = respond(number * every_s, found, past, config)
        assert cause in reason
        past.append(
            Incident(
                number * every_s, *found[:3], f"{node}/0", action, place="".join(place)
            )
        )
    return [one.action for one in past]


def test_program_error_stops_the_job_at_once():
    assert series(("program", "value-error", "")) == [STOP]


@pytest.mark.parametrize(
    "failure_class",
    ["gpu-hardware", "node-hardware", "node-lost", "corruption", "straggler"],
)
def test_hardware_is_replaced_at_once_and_always(failure_class):
    failures = [(failure_class, "x", f"n{at}") for at in range(20)]
    assert series(*failures) == [NODE] * 20


def test_interconnect_is_tried_in_place_then_anew_then_elsewhere():
    failures = [("interconnect", "link-flap", "a")] * 3
    assert series(*failures) == [PLACE, PROCESS, NODE]
    # Another node begins at the bottom.
    assert series(*failures, ("interconnect", "nccl-timeout", "b"))[-1] == PLACE


def test_machine_that_took_the_name_of_a_replaced_one_begins_anew():
    failures = [("interconnect", "link-flap", "a")] * 4
    assert series(*failures) == [PLACE, PROCESS, NODE, PLACE]


def test_failures_count_within_the_window_only():
    failures = [("interconnect", "link-flap", "a")] * 4
    assert series(*failures, every_s=4000.0) == [PLACE] * 4


def test_same_crash_at_the_same_place_on_two_nodes_is_the_program():
    crash = ("crash", "segfault")
    there = "train.py:4 in step"
    both = ((*crash, "a", there), (*crash, "b", there))
    assert series(*both, every_s=60.0) == [PROCESS, STOP]
    # What hits both at once, as a disk that stalls, is no proof.
    assert series(*both, every_s=59.0) == [PROCESS, PROCESS]
    elsewhere = ((*crash, "a", there), (*crash, "b", "data.py:9 in read"))
    assert series(*elsewhere, every_s=60.0) == [PROCESS, PROCESS]
    # Without a place nobody knows that it is the same.
    assert series((*crash, "a"), (*crash, "b")) == [PROCESS, PROCESS]


def test_same_crash_on_one_node_is_the_node():
    failures = [("crash", "segfault", "a", "train.py:4 in step")] * 2
    assert series(*failures) == [PROCESS, NODE]


def test_crashes_on_one_node_after_the_other_end_the_job():
    failures = [("crash", "abort", node) for node in "aabbcc"]
    assert series(*failures) == [PROCESS, NODE, PROCESS, STOP, PROCESS, STOP]


def test_memory_of_a_gpu_that_is_used_up_twice_is_the_program():
    failures = [("out-of-memory", "out-of-memory-cuda", "a")] * 2
    assert series(*failures) == [PROCESS, STOP]
    failures = [("out-of-memory", "out-of-memory-host", "a")] * 4
    assert series(*failures) == [PROCESS, PROCESS, NODE, PROCESS]


def test_failure_that_is_no_nodes_fault_is_tried_again_for_a_while():
    failures = [("interconnect", "nccl-timeout", "")] * 8
    assert series(*failures) == [PLACE, *[PROCESS] * 6, STOP]
    config = ResponseConfig(blameless=0)
    assert series(*failures[:3], config=config) == [PLACE, PROCESS, STOP]


def test_contained_error_of_memory_restarts_the_process_first():
    failures = [("gpu-hardware", "xid-94", "a")] * 2
    assert series(*failures) == [PROCESS, NODE]
    assert series(("gpu-hardware", "xid-94", "a"), ("gpu-hardware", "xid-79", "a")) == [
        PROCESS,
        NODE,
    ]


@pytest.mark.parametrize(
    ("failure_class", "cause", "expected"),
    [
        ("interconnect", "nic-firmware", [NODE, NODE]),
        ("crash", "illegal-instruction", [NODE, STOP]),
    ],
)
def test_what_the_same_node_does_again_is_not_tried_there(
    failure_class, cause, expected
):
    assert series(*[(failure_class, cause, "a")] * 2) == expected


def test_data_of_which_only_a_tool_has_told_is_tried_once_more():
    assert series(*[("data", "data-reported", "")] * 2) == [PROCESS, STOP]


def test_ladders_can_be_replaced():
    ladders = {**LADDERS, FailureClass.KILLED: Ladder(0, 0, 0)}
    config = ResponseConfig(ladders=ladders)
    assert series(("killed", "sigkill", "a"), config=config) == [STOP]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"window_s": 0.0}, "window_s"),
        ({"window_s": float("nan")}, "window_s"),
        ({"same_place_nodes": 1}, "same_place_nodes"),
        ({"same_place_apart_s": float("nan")}, "same_place_apart_s"),
        ({"blameless": -1}, "blameless"),
        ({"ladders": {}}, "none for gpu-hardware"),
        ({"ladders": {**LADDERS, "xid-94": Ladder(0, -1, None)}}, "xid-94"),
    ],
)
def test_config_that_cannot_be_is_refused(wrong, says):
    with pytest.raises(ProgramError, match=says):
        ResponseConfig(**wrong)


FAILURES = st.tuples(
    st.sampled_from(list(FailureClass)),
    st.sampled_from(["x", "xid-94", "remote-store", "out-of-memory-cuda"]),
    st.sampled_from(["a", "b", ""]),
    st.sampled_from(["", "train.py:4 in step"]),
)


@given(st.lists(FAILURES, max_size=30), st.floats(0.1, 5000.0))
def test_job_is_never_tried_in_the_same_way_for_ever(failures, every_s):
    actions = series(*failures, every_s=every_s)
    for (failure_class, cause, node, _), action in zip(failures, actions, strict=True):
        if not node:
            assert action != NODE
        if failure_class == FailureClass.PROGRAM and cause == "x":
            assert action == STOP


@given(st.sampled_from(list(FailureClass)), st.sampled_from(["a", ""]))
def test_same_failure_again_is_never_answered_with_less(failure_class, node):
    order = [PLACE, PROCESS, NODE, STOP]
    actions = series(*[(failure_class, "x", node)] * 12)
    # A node that was replaced is another one from then on.
    until = actions.index(NODE) + 1 if NODE in actions else len(actions)
    ranks = [order.index(one) for one in actions[:until]]
    assert ranks == sorted(ranks)
    assert actions[-1] in {NODE, STOP} or NODE in actions
