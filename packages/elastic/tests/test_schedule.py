"""The samples of each step, for any world: each once, and weighted to one mean."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_core.services import BatchPlan
from drivetrain_elastic._data._schedule import Block, Position, Schedule


def steps(schedule, num_copies):
    """Yields the blocks of a training, and its position after each."""
    position = Position()
    while True:
        block = schedule.block(position, num_copies=num_copies())
        position = schedule.after(block)
        yield block, position


@given(
    data=st.data(),
    num=st.integers(1, 60),
    batch=st.integers(1, 20),
    is_global=st.booleans(),
    drop_last=st.booleans(),
    num_epochs=st.integers(1, 3),
)
def test_each_sample_is_read_once_an_epoch_by_whatever_worlds(
    data, num, batch, is_global, drop_last, num_epochs
):
    sizes = {"global_batch": batch} if is_global else {"batch_per_copy": batch}
    if drop_last and (num < batch or not is_global):
        return
    schedule = Schedule(num_samples=num, drop_last=drop_last, seed=3, **sizes)
    read, world = Counter(), 1

    def num_copies():
        nonlocal world
        world = data.draw(st.integers(1, 9))
        return world

    for block, position in steps(schedule, num_copies):
        num_passes = data.draw(st.integers(1, 3))
        parts = [
            part
            for copy in range(world)
            for part in schedule.parts(
                block, num_shares=world, share=copy, num_micro_batches=num_passes
            )
        ]
        assert sum(len(part.indices) for part in parts) == block.size
        assert sum(part.weight for part in parts) == pytest.approx(1)
        for part in parts:
            assert part.weight == len(part.indices) / block.size
            read.update((block.epoch, index) for index in part.indices)
        if position.epoch == num_epochs:
            break
    num_read = num // batch * batch if drop_last else num
    assert set(read.values()) == {1}
    assert len(read) == num_epochs * num_read


def test_batch_that_follows_the_copies_leaves_out_what_is_not_whole():
    schedule = Schedule(num_samples=10, batch_per_copy=2, drop_last=True)
    counts = iter([1, 3, 2, 2])
    blocks = [block for block, _ in islice(steps(schedule, lambda: next(counts)), 4)]
    assert blocks == [(0, 0, 2), (0, 2, 6), (1, 0, 4), (1, 4, 4)]
    with pytest.raises(ProgramError, match="no whole batch of 12"):
        schedule.block(Position(), num_copies=6)


def test_order_does_not_depend_on_the_world():
    schedule = Schedule(num_samples=40, global_batch=8, seed=1)
    orders = {
        tuple(
            index
            for block, _ in islice(steps(schedule, lambda: 1), 10)
            for copy in range(world)
            for part in schedule.parts(block, num_shares=world, share=copy)
            for index in part.indices
        )
        for world in (1, 2, 3, 8)
    }
    assert len(orders) == 1


def test_parts_are_those_of_the_batch_plan():
    schedule = Schedule(num_samples=100, global_batch=11, shuffle=False)
    plan = BatchPlan(world_size=3, global_batch=11, num_micro_batches=2)
    for rank in range(3):
        parts = schedule.parts(
            Block(0, 11, 11), num_shares=3, share=rank, num_micro_batches=2
        )
        theirs = plan.for_rank(rank)
        assert [len(part.indices) for part in parts] == list(theirs.sizes)
        assert parts[0].indices[0] == 11 + theirs.start
        # Sums here, means there.
        weights = [part.weight * 3 for part in parts]
        assert weights == pytest.approx(theirs.weights)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_samples": 0}, "at least 1, got 0 and 4"),
        ({"global_batch": 0}, "at least 1, got 10 and 0"),
        ({"global_batch": 11, "drop_last": True}, "no whole batch of 11"),
        ({"global_batch": None}, "either global_batch or batch_per_copy"),
        ({"batch_per_copy": 2}, "either global_batch or batch_per_copy"),
    ],
)
def test_schedule_says_what_is_wrong(changes, says):
    with pytest.raises(ProgramError, match=says):
        Schedule(**{"num_samples": 10, "global_batch": 4, **changes})


def test_even_shares_make_equally_many_passes():
    schedule = Schedule(num_samples=10, global_batch=10, shuffle=False)
    for size, num_passes in ((2, 1), (3, 1), (7, 2), (10, 2)):
        shares = [
            schedule.parts(
                Block(0, 0, size),
                num_shares=4,
                share=share,
                num_micro_batches=2,
                even=True,
            )
            for share in range(4)
        ]
        assert {len(parts) for parts in shares} == {num_passes}
        read = [i for parts in shares for part in parts if part.weight for i in part[0]]
        assert read == list(range(size))
        assert sum(p.weight for parts in shares for p in parts) == pytest.approx(1)
