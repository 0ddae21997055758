"""The split of a global batch, by examples and for any numbers."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core.services import BatchPlan


@st.composite
def plans(draw):
    world_size = draw(st.integers(1, 70))
    count = draw(st.integers(1, 9))
    extra = draw(st.integers(0, 500))
    return BatchPlan(
        world_size=world_size,
        global_batch=world_size * count + extra,
        num_micro_batches=count,
    )


@given(plans())
@settings(deadline=None)
def test_parts_cover_the_batch_once_and_evenly(plan):
    parts = [plan.for_rank(rank) for rank in range(plan.world_size)]
    sizes = [size for part in parts for size in part.sizes]
    assert sum(sizes) == plan.global_batch
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert {len(part.sizes) for part in parts} == {plan.num_micro_batches}
    rows = [
        row for part in parts for s in part.slices for row in range(s.start, s.stop)
    ]
    assert rows == list(range(plan.global_batch))
    assert [part.start for part in parts] == [part.slices[0].start for part in parts]
    assert max(p.size for p in parts) - min(p.size for p in parts) <= 1


@given(plans(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_weights_give_the_exact_mean(plan, random):
    losses = [Fraction(random.randint(-99, 99)) for _ in range(plan.global_batch)]
    total = Fraction(0)
    for rank in range(plan.world_size):
        part = plan.for_rank(rank)
        for where, size, weight in zip(
            part.slices, part.sizes, part.weights, strict=True
        ):
            exact = Fraction(size * plan.world_size, plan.global_batch)
            assert weight == float(exact)
            total += exact * sum(losses[where], Fraction(0)) / size
    assert total / plan.world_size == sum(losses, Fraction(0)) / plan.global_batch


@given(plans())
@settings(deadline=None)
def test_weights_sum_to_the_world_size(plan):
    weights = [w for r in range(plan.world_size) for w in plan.for_rank(r).weights]
    assert math.isclose(sum(weights), plan.world_size)


def test_even_split_has_equal_weights():
    part = BatchPlan(world_size=4, global_batch=32, num_micro_batches=2).for_rank(3)
    assert part.sizes == (4, 4)
    assert part.weights == (0.5, 0.5)
    assert part.start == 24


def test_uneven_split_gives_larger_parts_first():
    plan = BatchPlan(world_size=3, global_batch=11, num_micro_batches=2)
    assert [plan.for_rank(r).sizes for r in range(3)] == [(2, 2), (2, 2), (2, 1)]


@pytest.mark.parametrize(
    ("world_size", "rows", "count", "fix"),
    [
        (4, 7, 2, "use at most 1 micro-batches, or a global batch of at least 8"),
        (4, 3, 1, "use a global batch of at least 4, or fewer ranks"),
        (1, 1, 2, "use at most 1 micro-batches"),
    ],
)
def test_too_few_rows_is_an_error_with_a_fix(world_size, rows, count, fix):
    with pytest.raises(ValueError, match=fix):
        BatchPlan(world_size=world_size, global_batch=rows, num_micro_batches=count)


@pytest.mark.parametrize("name", ["world_size", "global_batch", "num_micro_batches"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (1.0, TypeError),
        ("1", TypeError),
        (True, TypeError),
    ],
)
def test_arguments_are_checked(name, value, error):
    good = {"world_size": 1, "global_batch": 4, "num_micro_batches": 1}
    with pytest.raises(error, match=name):
        BatchPlan(**{**good, name: value})


@pytest.mark.parametrize(
    ("rank", "error"),
    [(-1, ValueError), (2, ValueError), (0.0, TypeError), (True, TypeError)],
)
def test_rank_is_checked(rank, error):
    with pytest.raises(error, match="rank"):
        BatchPlan(world_size=2, global_batch=2).for_rank(rank)


def test_plan_is_frozen_and_hashable():
    plan = BatchPlan(world_size=2, global_batch=4)
    assert hash(plan) == hash(BatchPlan(world_size=2, global_batch=4))
    with pytest.raises(AttributeError):
        plan.world_size = 3  # type: ignore[misc]


def test_module_needs_no_torch():
    code = (
        "import sys, drivetrain_core.services as s; s.BatchPlan; s.CapacityNotice; "
        "s.Checkpointer; s.ProcessGroupFactory; s.ClusterSpec; "
        "s.get_service; sys.exit('torch' in sys.modules)"
    )
    env = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
