"""Schedules that the compiler finds: right, and near what is possible."""

import dataclasses
import itertools
import math
import random

import pytest
from compiler_graphs import GRAPHS
from hypothesis import given, settings
from hypothesis import strategies as st
from msccl_read import from_msccl
from schedule_mutations import follow_at_random

from drivetrain_comm.compiler import (
    COLLECTIVES,
    LinkGraph,
    Schedule,
    ScheduleError,
    Transfer,
    Wire,
    compile_schedule,
    find_fault,
    full_mesh,
    hosts,
    lower_bound,
    ring,
    schedule_of,
    simulate,
    star,
    to_msccl,
    verify,
)
from drivetrain_comm.compiler._compile import _candidates
from drivetrain_comm.compiler._library import library
from drivetrain_comm.compiler._schedule import Kind

SIZE = 64_000_000


def found_at_end(schedule, seed=0):
    """Returns what ranks have, as sums of different powers of two."""
    rng = random.Random(seed)
    start = [
        [float(1 << rank)] * schedule.num_chunks for rank in range(schedule.num_ranks)
    ]
    return follow_at_random(schedule, start, rng)


def is_right(schedule, found):
    whole = float((1 << schedule.num_ranks) - 1)
    for chunk, owner in enumerate(schedule.owners):
        reduces = schedule.collective in ("all_reduce", "reduce_scatter")
        wanted = whole if reduces else float(1 << owner)
        ranks = range(schedule.num_ranks)
        if schedule.collective == "reduce_scatter":
            ranks = [owner]
        if any(found[rank][chunk] != wanted for rank in ranks):
            return False
    return True


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_compiled_schedule_is_right_and_near_the_bound(name, collective):
    graph = GRAPHS[name]
    found = compile_schedule(graph, collective, SIZE, most_pieces=16, budget_s=math.inf)
    verify(found.schedule)
    assert 1 - 1e-6 <= found.ratio <= 1.2
    assert found.seconds == simulate(found.schedule, graph, SIZE)
    assert found.candidates[0].seconds == found.seconds
    slowest = max(library(graph, collective), key=lambda s: simulate(s, graph, SIZE))
    assert found.seconds <= simulate(slowest, graph, SIZE)


def num_transfers(schedule):
    return sum(step.kind == Kind.SEND for p in schedule.programs for step in p)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_library_schedules_compute_what_they_should_in_any_order(name, collective):
    schedules = library(GRAPHS[name], collective)
    for schedule in schedules:
        assert find_fault(schedule) is None, schedule.name
        if num_transfers(schedule) <= 150:
            assert is_right(schedule, found_at_end(schedule, seed=len(schedule.name)))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_trees_compute_what_they_should_in_any_order(collective):
    graph = GRAPHS["star of 4"]
    every = [*_candidates(graph, collective, 4000, 0, 0.0, most_pieces=2)]
    found = [s for s in every if s.name.startswith(("trees", "greedy"))]
    assert {s.name.split()[0] for s in found} == {"trees", "greedy"}
    for schedule in found:
        for seed in range(3):
            assert is_right(schedule, found_at_end(schedule, seed))


def test_heavy_chunks_of_a_slow_rank_go_around_it():
    graph = star([1e9, 1e9, 1e9, 1e8])
    found = compile_schedule(
        graph, "all_reduce", SIZE, most_pieces=16, budget_s=math.inf
    )
    ours = min(
        simulate(s, graph, SIZE)
        for s in library(graph, "all_reduce")
        if s.name == "ring"
    )
    # The ring sends 1.5 vectors over the slow link; one is enough.
    assert ours / found.seconds > 1.4
    assert found.bound.because == "what must leave rank 3 over r3 -> switch"


def test_bounds_are_those_of_the_textbook():
    for size in (2, 3, 5, 8):
        graph = star([1e9] * size)
        share = (size - 1) / size
        assert lower_bound(graph, "all_reduce", 1e9).seconds == pytest.approx(2 * share)
        assert lower_bound(graph, "all_gather", 1e9).seconds == pytest.approx(share)
        assert lower_bound(graph, "reduce_scatter", 1e9).seconds == pytest.approx(share)
        assert lower_bound(graph, "broadcast", 1e9).seconds == pytest.approx(1.0)
    two = hosts([1e9] * 2, 4, 1e10)
    assert lower_bound(two, "all_reduce", 1e9).seconds == pytest.approx(1.0)
    four = hosts([1e9] * 4, 4, 1e10)
    assert lower_bound(four, "all_reduce", 1e9).seconds == pytest.approx(1.5)


def test_delay_alone_bounds_short_vectors():
    graph = ring(6, 1e9, 1e-3)
    bound = lower_bound(graph, "all_reduce", 8)
    assert bound.seconds == pytest.approx(3e-3)
    assert bound.because == "the way from 0 to 3"


def test_bound_does_not_depend_on_names():
    def racks(name):
        graph = hosts([1e8] * 3, 4, 1e10)
        wires = [
            dataclasses.replace(
                w,
                source=w.source.replace("host", name),
                target=w.target.replace("host", name),
            )
            for w in graph.wires
        ]
        return dataclasses.replace(graph, wires=tuple(wires))

    for name in ("leaf", "rack"):
        bound = lower_bound(racks(name), "all_reduce", 1e9)
        assert bound.seconds == pytest.approx(40 / 3)


@pytest.mark.parametrize("scale", [1e-9, 1e12])
def test_bound_scales_with_the_links(scale):
    graph = hosts([1e9 * scale, 5e8 * scale], 2, 1e10 * scale)
    assert lower_bound(graph, "all_reduce", 1e9 * scale).seconds == pytest.approx(2.0)


@pytest.mark.parametrize("size", [math.nan, math.inf, -1.0])
def test_numbers_that_are_none_are_refused(size):
    graph = star([1e9] * 2)
    (schedule,) = (s for s in library(graph, "all_reduce") if s.name == "direct")
    for arguments in ((size, 0.0), (1.0, size)):
        with pytest.raises(ScheduleError, match="must be finite and 0 or more"):
            simulate(schedule, graph, arguments[0], message_s=arguments[1])
        with pytest.raises(ScheduleError, match=r"must be \d or more"):
            compile_schedule(graph, "all_reduce", arguments[0], message_s=arguments[1])
    with pytest.raises(ScheduleError, match="root a rank of 2, got 'gather' and 0"):
        lower_bound(graph, "gather", 1.0)


@st.composite
def graphs(draw):
    """Any graph with few ranks, switches in between, and all kinds of speeds."""
    num_ranks = draw(st.integers(2, 5))
    places = [f"r{rank}" for rank in range(num_ranks)]
    places += [f"s{i}" for i in range(draw(st.integers(0, 2)))]
    speed = st.sampled_from([1e8, 3e8, 1e9, 4e9])
    order = draw(st.permutations(places))
    # A ring in both directions, so that all are connected, and wires at random.
    pairs = {(a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True)}
    pairs |= {(b, a) for a, b in pairs}
    others = list(itertools.permutations(places, 2))
    pairs |= set(draw(st.lists(st.sampled_from(others), max_size=6)))
    wires = [
        Wire(
            source=a,
            target=b,
            bytes_per_s=draw(speed),
            delay_s=draw(st.sampled_from([0.0, 1e-6, 1e-4])),
        )
        for a, b in sorted(pairs)
    ]
    return LinkGraph(name="drawn", num_ranks=num_ranks, wires=tuple(wires))


@settings(max_examples=40, deadline=None)
@given(graphs(), st.sampled_from(COLLECTIVES), st.sampled_from([1, 100, 10**5, 10**7]))
def test_any_graph_has_a_right_schedule_that_does_not_beat_the_bound(
    graph, collective, size
):
    bound = lower_bound(graph, collective, size).seconds
    for schedule in _candidates(graph, collective, size, 0, 0.0, most_pieces=2):
        verify(schedule)
        assert simulate(schedule, graph, size) >= bound * (1 - 1e-6)
        if num_transfers(schedule) <= 60:
            assert is_right(schedule, found_at_end(schedule))


def test_simulated_time_is_that_of_the_formula():
    size, delay = 8e6, 1e-3
    graph = star([1e9] * 4, delay)
    (around,) = (s for s in library(graph, "all_reduce") if s.name == "ring")
    # 2 (W - 1) hops of a chunk each, and as many delays.
    assert simulate(around, graph, size) == pytest.approx(6 * (size / 4 / 1e9 + delay))
    assert simulate(around, graph, size, message_s=1e-3) == pytest.approx(
        6 * (size / 4 / 1e9 + delay + 1e-3)
    )


def test_wires_are_shared_fairly():
    # Two flows leave rank 0 and share its link; a third has a link for itself.
    schedule = schedule_of(
        "", "broadcast", 3, [0], [Transfer(0, 1, 0), Transfer(0, 2, 0)]
    )
    graph = star([1e9] * 3)
    assert simulate(schedule, graph, 1e9) == pytest.approx(2.0)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_msccl_is_read_back_as_it_was(name, collective):
    graph = GRAPHS[name]
    for schedule in library(graph, collective):
        try:
            text = to_msccl(schedule, protocol="LL128", min_bytes=1, max_bytes=1 << 20)
        except ScheduleError as error:
            assert "rank r owns part r" in str(error)  # noqa: PT017
            continue
        again = from_msccl(text)
        assert again.owners == schedule.owners
        # Which steps a rank has, and their order on each chunk and with each peer.
        for one, other in zip(again.programs, schedule.programs, strict=True):
            assert sorted(one) == sorted(other)
            for chunk in range(schedule.num_chunks):
                of = [[s for s in p if s.chunk == chunk] for p in (one, other)]
                assert _reads_sorted(of[0]) == _reads_sorted(of[1])
        assert to_msccl(again).count("<step") == to_msccl(schedule).count("<step")
        assert simulate(again, graph, SIZE) == pytest.approx(
            simulate(schedule, graph, SIZE), rel=0.3
        )


def _reads_sorted(steps):
    """Sends of one chunk with nothing in between may be in any order."""
    groups = itertools.groupby(steps, key=lambda s: s.kind)
    return [sorted(group) for _, group in groups]


def test_schedules_of_files_are_as_they_were():
    schedule = compile_schedule(
        GRAPHS["star of 4"], "all_reduce", 10**6, most_pieces=4
    ).schedule
    assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collective": "gather"}, "no collective 'gather'"),
        ({"size_bytes": 0}, "size_bytes must be 1 or more, got 0"),
        ({"collective": "broadcast", "root": 4}, "root must be one of 4 ranks, got 4"),
    ],
)
def test_what_cannot_be_compiled_is_refused(arguments, message):
    usual = {"collective": "all_reduce", "size_bytes": 100}
    with pytest.raises(ScheduleError, match=message):
        compile_schedule(full_mesh(4, 1e9), **{**usual, **arguments})


def both_ways(first, second, delay_s, bytes_per_s=1e9):
    return [
        Wire(source=one, target=other, bytes_per_s=bytes_per_s, delay_s=delay_s)
        for one, other in ((first, second), (second, first))
    ]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [3_000, 300_000])
def test_schedule_goes_around_a_link_with_a_long_delay(collective, size):
    short = [*both_ways("r0", "r2", 1e-5), *both_ways("r2", "r1", 1e-5)]
    long = both_ways("r0", "r1", 1e-3)
    around = LinkGraph(name="line", num_ranks=3, wires=tuple(short))
    graph = LinkGraph(name="triangle", num_ranks=3, wires=(*short, *long))
    assert graph.quickest().wires == around.wires
    # Long enough for the whole search, which would end by the clock otherwise.
    found = compile_schedule(graph, collective, size, budget_s=60)
    least = compile_schedule(around, collective, size, budget_s=60).seconds
    assert found.seconds <= least * (1 + 1e-9)
    assert find_fault(found.schedule) is None


def test_small_message_is_reduced_where_all_are_near():
    """By hand, on the short links of the triangle: gathered in the middle, and back."""
    wires = [
        *both_ways("r0", "r1", 1e-3),
        *both_ways("r0", "r2", 1e-5),
        *both_ways("r2", "r1", 1e-5),
    ]
    graph = LinkGraph(name="triangle", num_ranks=3, wires=tuple(wires))
    there = [Transfer(s, 2, c, reduces=True) for s in (0, 1) for c in range(3)]
    back = [Transfer(2, t, c) for t in (0, 1) for c in range(3)]
    by_hand = schedule_of("by hand", "all_reduce", 3, [2, 2, 2], [*there, *back])
    verify(by_hand)
    found = compile_schedule(graph, "all_reduce", 3_000, budget_s=5)
    assert found.seconds <= simulate(by_hand, graph, 3_000)


def test_graph_without_detours_is_its_own_quickest():
    for graph in GRAPHS.values():
        assert graph.quickest() is graph, graph.name
