"""The verifier: mistakes it finds, and that it agrees with runs in random order."""

import random

import pytest
from compiler_graphs import GRAPHS
from msccl_read import from_msccl
from schedule_mutations import MUTATIONS, mutated

from drivetrain_comm.algorithms._steps import Kind, Step
from drivetrain_comm.compiler import (
    COLLECTIVES,
    Schedule,
    ScheduleError,
    Transfer,
    compile_schedule,
    find_fault,
    schedule_of,
    star,
    to_msccl,
    verify,
)
from drivetrain_comm.compiler._library import library

SCHEDULES = [
    schedule
    for collective in COLLECTIVES
    for name in ("star of 4", "mesh of 4", "2 hosts of 3")
    for schedule in library(GRAPHS[name], collective)
]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_mistake_is_found(mutation):
    rng = random.Random(mutation)
    num_tried = 0
    for schedule in SCHEDULES:
        for _ in range(4):
            wrong = mutated(schedule, mutation, rng)
            if wrong is not None:
                num_tried += 1
                assert find_fault(wrong) is not None, wrong.name
    assert num_tried > 50


def programs(*lines):
    kinds = {kind.name[0:3].lower(): kind for kind in Kind}
    found = []
    for line in lines:
        words = [word.split(".") for word in line.split()]
        found.append(tuple(Step(kinds[k], int(p), int(c)) for k, p, c in words))
    return tuple(found)


WRONG = {
    "rank 1 waits for chunk 0 of rank 0": ("", "rec.0.0"),
    "rank 1 never takes chunk 0 of rank 0": ("sen.1.0", ""),
    "rank 1 has no part of chunk 0 at the end": ("", ""),
    "rank 1 receives chunk 0 twice": ("sen.1.0 sen.1.0", "rec.0.0 rec.0.0"),
    "rank 1 sends chunk 0 to rank 0 before it has any": (
        "rec.1.0 sen.1.0",
        "sen.0.0 rec.0.0",
    ),
    "rank 0 finishes chunk 0, and nothing is reduced": ("fin.-1.0", ""),
    "rank 1 adds to chunk 0, and nothing is reduced": (
        "sen.1.0 rec.1.0",
        "red.0.0 sen.0.0",
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_verifier_says_what_is_wrong_with_a_broadcast(message):
    schedule = Schedule(
        name="x",
        collective="broadcast",
        owners=(0,),
        programs=programs(*WRONG[message]),
    )
    assert find_fault(schedule) == message
    with pytest.raises(ScheduleError, match=f"x is no broadcast: {message}"):
        verify(schedule)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ("red.1.0 fin.-1.0 sen.1.0", "sen.0.0 red.0.0"),
            "rank 1 adds to chunk 0 after it was finished",
        ),
        (("red.1.0 sen.1.0", "sen.0.0 rec.0.0"), "rank 0 does not finish chunk 0"),
        (("fin.-1.0 sen.1.0", "rec.0.0"), "rank 0 finishes chunk 0 without rank 1"),
        (
            ("red.1.0 fin.-1.0 fin.-1.0 sen.1.0", "sen.0.0 rec.0.0"),
            "rank 0 finishes chunk 0 twice",
        ),
        (
            ("red.1.0 sen.1.0", "sen.0.0 rec.0.0 fin.-1.0"),
            "rank 1 finishes chunk 0, which rank 0 owns",
        ),
        (
            ("rec.1.0 fin.-1.0", "sen.0.0"),
            "rank 0 loses rank 0 of chunk 0",
        ),
        (
            ("red.1.0 red.1.0 fin.-1.0 sen.1.0", "sen.0.0 sen.0.0 rec.0.0"),
            "chunk 0 of rank 0 holds rank 1 twice",
        ),
        (
            ("sen.1.0 red.1.0 fin.-1.0", "red.0.0 sen.0.0"),
            "chunk 0 of rank 0 holds rank 0 twice",
        ),
        (
            ("red.1.0 fin.-1.0", "sen.0.0"),
            "chunk 0 of rank 1 lacks rank 0 at the end",
        ),
    ],
)
def test_verifier_says_what_is_wrong_with_an_all_reduce(lines, message):
    schedule = Schedule(
        name="x", collective="all_reduce", owners=(0,), programs=programs(*lines)
    )
    assert find_fault(schedule) == message


def test_ranks_that_wait_for_each_other_are_found():
    # Each takes before it sends; no side can begin.
    wrong = Schedule(
        name="x",
        collective="all_reduce",
        owners=(0,),
        programs=programs("red.1.0 sen.1.0 fin.-1.0", "red.0.0 sen.0.0"),
    )
    assert find_fault(wrong) == (
        "ranks wait for each other: rank 0 cannot send chunk 0"
    )


def test_what_was_sent_before_it_was_finished_is_not_the_result():
    # An average that is divided after it was sent is one on its owner alone.
    wrong = Schedule(
        name="x",
        collective="all_reduce",
        owners=(0,),
        programs=programs("red.1.0 sen.1.0 fin.-1.0", "sen.0.0 rec.0.0"),
    )
    assert find_fault(wrong) == "chunk 0 of rank 1 is not that of rank 0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"collective": "gather"}, "no collective 'gather'"),
        ({"owners": ()}, "two ranks and one chunk are needed"),
        ({"owners": (2,)}, "there is no rank 2 to own a chunk"),
        ({"programs": programs("")}, "two ranks and one chunk are needed"),
        ({"programs": programs("sen.2.0", "")}, "step 0 of rank 0 is send 2 0"),
        ({"programs": programs("sen.0.0", "")}, "step 0 of rank 0 is send 0 0"),
        ({"programs": programs("", "rec.0.1")}, "step 0 of rank 1 is receive 0 1"),
        ({"programs": programs("fin.0.0", "")}, "step 0 of rank 0 is finish 0 0"),
    ],
)
def test_schedules_that_name_what_is_not_there_are_refused(change, message):
    usual = {
        "name": "x",
        "collective": "broadcast",
        "owners": (0,),
        "programs": programs("sen.1.0", "rec.0.0"),
    }
    with pytest.raises(ScheduleError, match=message):
        Schedule(**{**usual, **change})


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(2, 0, 0),
        Transfer(0, 2, 0),
        Transfer(0, 0, 0),
        Transfer(0, 1, 1),
        (-1, 0, 0, True),
    ],
)
def test_transfers_that_name_what_is_not_there_are_refused(transfer):
    with pytest.raises(ScheduleError, match="x: transfer 1 is of chunk"):
        schedule_of("x", "broadcast", 2, [0], [Transfer(0, 1, 0), transfer])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a schedule is JSON"),
        ("[]", "drivetrain_schedule = 1"),
        ('{"drivetrain_schedule": 2}', "drivetrain_schedule = 1"),
        ('{"drivetrain_schedule": 1}', "name of a schedule must be a str"),
        ('{"drivetrain_schedule": true}', "drivetrain_schedule = 1"),
        ('{"drivetrain_schedule": 1, "extra": 1}', "has no field 'extra'"),
        ('{"name": "x", "name": "y"}', "the key 'name' is there twice"),
        ("[" * 100_000, "a schedule is JSON"),
        (
            (
                '{"drivetrain_schedule": 1, "name": "x", "collective": "broadcast", '
                '"owners": [0], "programs": [["jump 1 0"], []]}'
            ),
            "step 0 of rank 0 must be 'send",
        ),
        (
            (
                '{"drivetrain_schedule": 1, "name": "x", "collective": "broadcast", '
                '"owners": ["a"], "programs": [[], []]}'
            ),
            "owners must be ranks",
        ),
        (
            (
                '{"drivetrain_schedule": 1, "name": "x", "collective": "broadcast", '
                '"owners": [0], "programs": [7, []]}'
            ),
            "the program of rank 0 must be a list",
        ),
    ],
)
def test_files_that_hold_no_schedule_are_refused(text, message):
    with pytest.raises(ScheduleError, match=message):
        Schedule.from_json(text)


PAIR = schedule_of(
    "pair",
    "all_reduce",
    3,
    [0],
    [
        Transfer(2, 1, 0, reduces=True),
        Transfer(1, 0, 0, reduces=True),
        Transfer(0, 1, 0),
        Transfer(1, 2, 0),
    ],
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<algo", "<algos", "it begins|is XML"),
        ("</algo>", "", "an MSCCL algorithm is XML"),
        ('coll="allreduce"', 'coll="alltoall"', "coll='alltoall'"),
        ('ngpus="3"', 'ngpus="4"', "ngpus=4, but its gpus are"),
        ('type="rrc"', 'type="xyz"', "type='xyz' is not read here"),
        ('<step s="0"', '<step s="1"', "steps must be 0, 1, 2"),
        ('cnt="1"', 'cnt="2"', "only single chunks"),
        ('depid="0" deps="0"', 'depid="9" deps="0"', "waits for step 0 of tb 9"),
        ('depid="0" deps="0"', 'depid="0" deps="7"', "waits for step 7 of tb 0"),
        ('depid="0" deps="0"', 'depid="-1" deps="-1"', "a dependency is missing"),
        ('send="1"', 'send="-1"', "no peer for type='s'"),
        ('srcoff="0"', 'srcoff="none"', "srcoff must be a whole number, got 'none'"),
        (' hasdep="0"', "", "the attribute hasdep is missing"),
        ('hasdep="1"', 'hasdep="0"', "hasdep must be 1, since tb 1 waits for it"),
        ('srcbuf="i"', 'srcbuf="s"', "srcbuf must be 'i', got 's'"),
        ('dstbuf="i"', 'dstbuf="o"', "dstbuf must be 'i', got 'o'"),
        ('chan="0"', 'chan="7"', "only channel 0 is read"),
        ('inplace="1"', 'inplace="0"', "only inplace='1' is read"),
        ('nchannels="1"', 'nchannels="2"', "only nchannels='1' is read"),
        ('i_chunks="1"', 'i_chunks="9"', "i_chunks must be 1, got 9"),
        ('nchunksperloop="1"', 'nchunksperloop="999999999"', "more than steps can"),
        ('ngpus="3"', 'ngpus="999999999"', "but its gpus are"),
        ('gpu id="2"', 'gpu id="1"', "but its gpus are"),
        ('send="2" recv="-1"', 'send="0" recv="-1"', "another block has send=0 too"),
        (' type="s"', "", "the attribute type is missing"),
    ],
)
def test_msccl_with_a_mistake_is_refused_by_name(old, new, message):
    text = to_msccl(PAIR)
    assert old in text
    changed = text.replace(old, new)
    with pytest.raises(ScheduleError, match=message):
        from_msccl(changed)


def test_msccl_that_is_no_collective_is_refused():
    text = to_msccl(PAIR).replace('type="rrc"', 'type="r"', 1)
    with pytest.raises(ScheduleError, match="pair is no all_reduce"):
        from_msccl(text)


def test_msccl_that_is_too_large_for_its_executor_is_refused():
    graph = star([1e9] * 2)
    fine = compile_schedule(graph, "broadcast", 10**9, budget_s=0.0).schedule
    many = schedule_of(
        "many", "broadcast", 2, [0] * 600, [Transfer(0, 1, c) for c in range(600)]
    )
    assert from_msccl(to_msccl(fine)).num_chunks == fine.num_chunks
    with pytest.raises(ScheduleError, match="cut the vector into fewer chunks"):
        to_msccl(many)
    with pytest.raises(ScheduleError, match="protocol must be one of"):
        to_msccl(fine, protocol="ll")
    with pytest.raises(ScheduleError, match="sizes must be"):
        to_msccl(fine, min_bytes=2, max_bytes=1)
