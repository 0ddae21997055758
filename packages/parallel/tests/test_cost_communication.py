"""Gradients that copies sum in every micro-batch, instead of once a step."""

from __future__ import annotations

import dataclasses

import pytest
from cost_hardware import model, nodes, options
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import MeshShape
from drivetrain_parallel.cost import predict
from drivetrain_parallel.cost.collectives import Group, all_gather_s, all_reduce_s
from drivetrain_parallel.cost.communication import data_traffic

PARAMETERS, BLOCK = 1e9, 1e8
COPIES = [
    MeshShape(shard=2),
    MeshShape(replicate=2),
    MeshShape(replicate=4, shard=2),
    MeshShape(context=2, shard=2),
    MeshShape(pipeline=2, shard=2, tensor=2),
]
copies = pytest.mark.parametrize("shape", COPIES, ids=str)
up_to_zero_1 = pytest.mark.parametrize("zero", [0, 1])


def traffic(shape, parameters=PARAMETERS, **changes):
    """What data parallel says in a step."""
    return data_traffic(parameters, 0.0, BLOCK, nodes(), shape, options(**changes))


def exposed(shape, **changes):
    """The seconds of a step that go to it, with nothing hidden."""
    changes = {"zero": 0, "overlap_data": 0.0, **changes}
    return predict(model(), nodes(), shape, options(**changes)).seconds["data"]


@copies
@up_to_zero_1
def test_each_micro_batch_takes_an_all_reduce_over_all_copies(shape, zero):
    found = traffic(shape, zero=zero, reduce_each_micro_batch=True)
    number = shape.replicate * shape.shard * shape.context
    expected = all_reduce_s(nodes(), Group(number, number), 4 * PARAMETERS)
    assert found.each_pass == pytest.approx(expected)


@copies
def test_what_is_left_to_the_end_of_the_step_is_gathering_divided_weights(shape):
    gather = all_gather_s(nodes(), Group(shape.shard, shape.shard), 2 * PARAMETERS)
    for zero, left in ((0, 0.0), (1, gather), (2, gather), (3, 0.0)):
        found = traffic(shape, zero=zero, reduce_each_micro_batch=True)
        assert found.each_step == pytest.approx(left)


@copies
@given(times=st.integers(2, 50))
def test_time_grows_with_parameters(shape, times):
    changes = {"zero": 0, "reduce_each_micro_batch": True}
    once = traffic(shape, **changes).each_pass
    more = traffic(shape, PARAMETERS * times, **changes).each_pass
    assert more == pytest.approx(times * once)


@copies
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_time_grows_with_micro_batches(shape, micro_batch):
    once = exposed(shape, micro_batch=micro_batch)
    each = exposed(shape, micro_batch=micro_batch, reduce_each_micro_batch=True)
    micro_batches = 64 // (shape.data_size * micro_batch)
    assert once > 0
    assert each == pytest.approx(micro_batches * once)


@pytest.mark.parametrize(
    "shape", [MeshShape(), MeshShape(tensor=8), MeshShape(pipeline=2)], ids=str
)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_one_copy_sums_nothing(shape, zero):
    assert exposed(shape, zero=zero, reduce_each_micro_batch=True) == 0


@copies
@up_to_zero_1
def test_a_slower_program_takes_longer_by_its_share(shape, zero):
    whole = traffic(shape, zero=zero, reduce_each_micro_batch=True)
    tenth = traffic(
        shape, zero=zero, reduce_each_micro_batch=True, reduce_rate_share=0.1
    )
    assert tenth.each_pass == pytest.approx(10 * whole.each_pass)
    assert tenth.each_step == whole.each_step  # It gathers as fast as any other.


@pytest.mark.parametrize("zero", [2, 3])
def test_ranks_that_divide_gradients_sum_each_micro_batch_in_any_case(zero):
    shape = MeshShape(shard=4)
    plain = traffic(shape, zero=zero)
    assert traffic(shape, zero=zero, reduce_each_micro_batch=True) == plain
    assert plain.each_pass > 0


@pytest.mark.parametrize("zero", [2, 3])
def test_replicas_of_divided_gradients_sum_their_part_in_each_micro_batch(zero):
    shape = MeshShape(replicate=2, shard=4)
    plain = traffic(shape, zero=zero)
    each = traffic(shape, zero=zero, reduce_each_micro_batch=True)
    moved = all_reduce_s(nodes(), Group(2, 2), 4 * PARAMETERS / 4)
    assert each.each_pass - plain.each_pass == pytest.approx(moved)
    assert plain.each_step - each.each_step == pytest.approx(moved)


@copies
@up_to_zero_1
def test_it_needs_no_memory_and_changes_no_other_term(shape, zero):
    plain = options(zero=zero, overlap_data=0.0)
    each = dataclasses.replace(plain, reduce_each_micro_batch=True)
    before, after = (predict(model(), nodes(), shape, o) for o in (plain, each))
    assert after.memory == before.memory
    assert {k: v for k, v in after.seconds.items() if k != "data"} == {
        k: v for k, v in before.seconds.items() if k != "data"
    }
