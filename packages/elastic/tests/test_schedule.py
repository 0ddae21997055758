"""The samples of each step, for any world: each once, and weighted to one mean."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_core.services import BatchPlan
from drivetrain_elastic._schedule import Schedule


@given(
    data=st.data(),
    num=st.integers(1, 60),
    batch=st.integers(1, 20),
    drop_last=st.booleans(),
    num_epochs=st.integers(1, 3),
)
def test_each_sample_is_read_once_an_epoch_by_whatever_worlds(
    data, num, batch, drop_last, num_epochs
):
    if drop_last and num < batch:
        return
    schedule = Schedule(
        num_samples=num, global_batch=batch, drop_last=drop_last, seed=3
    )
    read = Counter()
    for step in range(1, num_epochs * schedule.steps_per_epoch + 1):
        world = data.draw(st.integers(1, 9))
        num_passes = data.draw(st.integers(1, 3))
        parts = [
            part
            for rank in range(world)
            for part in schedule.parts(
                step, world_size=world, rank=rank, num_micro_batches=num_passes
            )
        ]
        epoch, _, size = schedule.block(step)
        assert sum(len(part.indices) for part in parts) == size
        assert sum(part.weight for part in parts) == pytest.approx(1)
        for part in parts:
            assert part.weight == len(part.indices) / size
            read.update((epoch, index) for index in part.indices)
    num_read = num // batch * batch if drop_last else num
    assert set(read.values()) == {1}
    assert len(read) == num_epochs * num_read


def test_order_does_not_depend_on_the_world():
    schedule = Schedule(num_samples=40, global_batch=8, seed=1)
    orders = {
        tuple(
            index
            for step in range(1, 11)
            for rank in range(world)
            for part in schedule.parts(step, world_size=world, rank=rank)
            for index in part.indices
        )
        for world in (1, 2, 3, 8)
    }
    assert len(orders) == 1


def test_parts_are_those_of_the_batch_plan():
    schedule = Schedule(num_samples=100, global_batch=11, shuffle=False)
    plan = BatchPlan(world_size=3, global_batch=11, num_micro_batches=2)
    for rank in range(3):
        parts = schedule.parts(2, world_size=3, rank=rank, num_micro_batches=2)
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
    ],
)
def test_schedule_says_what_is_wrong(changes, says):
    with pytest.raises(ProgramError, match=says):
        Schedule(**{"num_samples": 10, "global_batch": 4, **changes})
