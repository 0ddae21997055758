"""Splitting blocks into stages, and the rules of schedules."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import Code, PlanError
from drivetrain_parallel.pipeline import (
    SCHEDULES,
    PipelineCosts,
    balance,
    stages_of_rank,
    stages_per_rank,
)
from drivetrain_parallel.pipeline.balance import stage_costs
from drivetrain_parallel.pipeline.schedules import (
    check_micro_batches,
    stage_owner,
)

COSTS = st.lists(st.integers(0, 9), min_size=2, max_size=7)


def all_splits(num_blocks, num_stages):
    for cuts in itertools.combinations(range(1, num_blocks), num_stages - 1):
        edges = [0, *cuts, num_blocks]
        yield tuple(itertools.pairwise(edges))


@pytest.mark.slow
@given(COSTS, st.integers(0, 20), st.integers(0, 20), st.data())
@settings(max_examples=60, deadline=None)
def test_no_other_split_has_a_faster_slowest_stage(blocks, before, after, data):
    num = data.draw(st.integers(1, len(blocks)))
    costs = PipelineCosts(prologue=before, blocks=tuple(blocks), epilogue=after)
    found = balance(costs, num)
    assert found in set(all_splits(len(blocks), num))
    best = min(max(stage_costs(costs, s)) for s in all_splits(len(blocks), num))
    assert max(stage_costs(costs, found)) == best


def test_five_blocks_on_two_stages_leave_the_head_the_shorter_one():
    even = PipelineCosts(prologue=0.0, blocks=(1.0,) * 5, epilogue=0.0)
    assert balance(even, 2) == ((0, 3), (3, 5))
    head = PipelineCosts(prologue=0.0, blocks=(1.0,) * 5, epilogue=2.0)
    assert balance(head, 2) == ((0, 4), (4, 5)) or balance(head, 2) == ((0, 3), (3, 5))
    assert max(stage_costs(head, balance(head, 2))) == 4.0


def test_only_allowed_cuts_are_used():
    costs = PipelineCosts(prologue=0.0, blocks=(1.0,) * 6, epilogue=0.0)
    assert balance(costs, 2, cuts=(1, 5)) in {((0, 1), (1, 6)), ((0, 5), (5, 6))}


@pytest.mark.parametrize(("cuts", "fix"), [(None, "at most 2"), ((), "at most 1")])
def test_too_few_blocks_is_an_error_with_the_most_that_is_possible(cuts, fix):
    costs = PipelineCosts(prologue=0.0, blocks=(1.0, 1.0), epilogue=0.0)
    with pytest.raises(PlanError, match=fix) as caught:
        balance(costs, 3, cuts=cuts)
    assert caught.value.code is Code.NOT_DIVISIBLE


@pytest.mark.parametrize("blocks", [(), (1.0, -1.0)])
def test_costs_are_checked(blocks):
    with pytest.raises(PlanError, match="costs must be at least zero"):
        PipelineCosts(prologue=0.0, blocks=blocks, epilogue=0.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_each_stage_lies_on_one_rank(schedule, num_ranks):
    per_rank = stages_per_rank(schedule)
    held = [
        stages_of_rank(
            schedule, rank=rank, num_ranks=num_ranks, stages_per_rank=per_rank
        )
        for rank in range(num_ranks)
    ]
    assert sorted(itertools.chain(*held)) == list(range(num_ranks * per_rank))
    assert all(len(stages) == per_rank for stages in held)
    for rank, stages in enumerate(held):
        assert all(stage_owner(schedule, s, num_ranks) == rank for s in stages)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_lie_where_the_schedules_of_torch_put_them(schedule):
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

    num = 3 * stages_per_rank(schedule)
    form = SCHEDULES[schedule].form
    expected = generate_stage_to_rank_mapping(3, num, style=form)
    assert {s: stage_owner(schedule, s, 3) for s in range(num)} == expected


def test_an_unknown_schedule_names_the_known_ones():
    with pytest.raises(PlanError, match="use one of gpipe, 1f1b"):
        stages_per_rank("2f2b")


@pytest.mark.parametrize(("schedule", "given"), [("1f1b", 2), ("zbv_zero_bubble", 3)])
def test_a_fixed_number_of_stages_is_kept(schedule, given):
    with pytest.raises(PlanError, match="exactly"):
        stages_per_rank(schedule, given)
    with pytest.raises(PlanError, match="at least 1"):
        stages_per_rank("looped_bfs", 0)


@pytest.mark.parametrize(
    ("schedule", "num", "fix"),
    [
        ("1f1b", 3, "use 4 micro-batches, or gpipe"),
        ("dual_pipe_v", 3, "use 4 micro-batches"),
        ("interleaved_1f1b", 5, "use 6 micro-batches"),
        ("interleaved_zero_bubble", 5, "use 6 micro-batches"),
        ("gpipe", 0, "use 1 micro-batches"),
    ],
)
def test_too_few_micro_batches_are_refused_with_the_next_number(schedule, num, fix):
    with pytest.raises(PlanError, match=fix) as caught:
        check_micro_batches(schedule, num, num_ranks=2, num_stages=4)
    assert caught.value.code is Code.CONFIG


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_enough_micro_batches_are_accepted(schedule):
    check_micro_batches(schedule, 4, num_ranks=2, num_stages=4)
