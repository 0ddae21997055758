"""The time and memory of a step: exact parts by hand, and what must always hold."""

from __future__ import annotations

import dataclasses

import pytest
from cost_hardware import PERFECT, model, nodes, options
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import MeshShape
from drivetrain_core._errors import ClusterSpecError, PlanError
from drivetrain_parallel.cost import Path, StepOptions, predict
from drivetrain_parallel.cost.collectives import send_s

SHAPES = [
    MeshShape(),
    MeshShape(shard=8),
    MeshShape(replicate=2, shard=8),
    MeshShape(tensor=4, shard=2),
    MeshShape(pipeline=4, shard=2),
    MeshShape(pipeline=2, shard=4, tensor=2),
    MeshShape(shard=4, context=2),
]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@shapes
def test_terms_add_up_and_none_is_negative(shape):
    found = predict(model(), nodes(), shape, options())
    assert sum(found.seconds.values()) == pytest.approx(found.step_s)
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert sum(found.memory.values()) == found.memory_bytes
    assert 0 < found.mfu <= found.hfu <= 1
    assert found.because


@shapes
@given(faster=st.floats(1.0, 20.0))
def test_more_bandwidth_is_never_slower(shape, faster):
    slow = nodes(efficiency=dataclasses.replace(PERFECT, contention=0.5))
    fast = dataclasses.replace(
        slow,
        link=Path(bytes_per_s=slow.link.bytes_per_s * faster),
        network=Path(bytes_per_s=slow.network.bytes_per_s * faster),
        memory_bandwidth=slow.memory_bandwidth * faster,
        peak_flops={"bfloat16": slow.peak("bfloat16") * faster},
    )
    before = predict(model(), slow, shape, options()).step_s
    assert predict(model(), fast, shape, options()).step_s <= before * (1 + 1e-9)


@given(
    micro_batch=st.sampled_from([1, 2, 4]),
    checkpointing=st.sampled_from(["none", "selective", "full"]),
    tensor=st.sampled_from([1, 2, 4]),
)
def test_checkpointing_takes_time_and_frees_memory(micro_batch, checkpointing, tensor):
    shape = MeshShape(tensor=tensor, shard=8 // tensor)
    kept = predict(model(), nodes(), shape, options(micro_batch=micro_batch))
    again = predict(
        model(),
        nodes(),
        shape,
        options(micro_batch=micro_batch, checkpointing=checkpointing),
    )
    assert again.step_s >= kept.step_s
    assert again.memory["activations"] <= kept.memory["activations"]
    assert again.mfu <= kept.mfu


def test_one_device_computes_what_the_model_asks_for():
    # Nothing but arithmetic: memory and kernels cost nothing.
    hardware = nodes(memory_bandwidth=1e30)
    profile = model(causal=False)
    found = predict(profile, hardware, MeshShape(), options())
    block = profile.block
    attention = 16 * block.attention_flops * (1 + 2.5)
    products = 3 * (16 * block.matmul_flops + profile.epilogue.matmul_flops)
    tokens = 64 * 1024
    expected = tokens * (attention + products) / 100e12
    assert found.step_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "chunks", "share"),
    [
        ("1f1b", 1, 3 / 8),
        ("gpipe", 1, 3 / 8),
        ("interleaved_1f1b", 2, 3 / 16),
        ("looped_bfs", 4, 3 / 32),
    ],
)
def test_bubble_is_the_gaps_over_the_micro_batches(schedule, chunks, share):
    # The ends cost nothing, and neither do messages: equal stages.
    profile = dataclasses.replace(model(), prologue=model().prologue)
    profile = dataclasses.replace(
        profile,
        epilogue=dataclasses.replace(
            profile.epilogue, matmuls=(), inner_elements=0.0, outer_elements=0.0
        ),
        prologue=dataclasses.replace(profile.prologue, outer_elements=0.0),
    )
    hardware = nodes(link=Path(bytes_per_s=1e30), memory_bandwidth=1e30)
    found = predict(
        profile,
        hardware,
        MeshShape(pipeline=4),
        options(global_batch=8, schedule=schedule, stages_per_rank=chunks),
    )
    computing = found.step_s - found.seconds["bubble"]
    assert found.seconds["bubble"] / computing == pytest.approx(share, rel=1e-6)
    assert found.blocks == (4, 4, 4, 4)


@pytest.mark.parametrize("shard", [1, 2, 8])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_of_states_is_exact(zero, shard):
    profile = model(tied=True)
    found = predict(profile, nodes(), MeshShape(shard=shard), options(zero=zero)).memory
    whole = profile.num_parameters
    block = profile.block.parameters
    # Of the largest rank: its shard, and what is gathered or reduced meanwhile.
    divided = [1 if zero < level else shard for level in (3, 2, 1)]
    gathered = {
        3: 2 * (2 * block + whole - 16 * block) if shard > 1 else 0,
        2: 2 * whole,
    }.get(zero, 0)
    reduced = 4 * block if zero >= 2 and shard > 1 else 0
    weights = 4 * whole / (divided[0] if zero == 3 else shard if zero == 2 else 1)
    assert found["parameters"] == weights + gathered
    assert found["gradients"] == 4 * whole / divided[1] + reduced
    assert found["optimizer"] == 8 * whole / divided[2]


def test_memory_of_tensor_parallel_divides_what_it_splits():
    profile = model(biases=True)
    found = predict(
        profile, nodes(), MeshShape(tensor=4), options(zero=0, checkpointing="full")
    ).memory
    split = 16 * profile.block.split_parameters + 2 * 32000 * 1024
    whole = profile.num_parameters - split
    assert found["optimizer"] == 8 * (split / 4 + whole)


def test_first_rank_of_1f1b_holds_a_micro_batch_for_each_stage():
    sizes = {"vocab": 8}  # So that the first rank needs the most.
    whole = predict(model(**sizes), nodes(), MeshShape(), options(checkpointing="none"))
    stages = predict(
        model(**sizes), nodes(), MeshShape(pipeline=4), options(checkpointing="none")
    )
    # A quarter of the blocks, four times.
    assert stages.memory["activations"] == pytest.approx(
        whole.memory["activations"], rel=0.01
    )


@pytest.mark.parametrize("shape", [MeshShape(), MeshShape(shard=4)], ids=str)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("micro_batch", [1, 2, 16])
def test_sum_of_gradients_is_read_and_written_by_all_micro_batches_but_one(
    shape, zero, micro_batch
):
    found = predict(
        model(),
        nodes(),
        shape,
        options(zero=zero, micro_batch=micro_batch, gradient_bytes=4),
    )
    kept = model().num_parameters / (shape.shard if zero >= 2 else 1)
    sums = 64 // shape.shard // micro_batch - 1
    assert found.seconds["accumulation"] == pytest.approx(sums * 2 * 4 * kept / 2e12)


def test_sum_of_gradients_is_of_what_a_rank_holds():
    profile = model(biases=True)
    apart = predict(profile, nodes(), MeshShape(tensor=4), options(zero=0))
    whole = predict(profile, nodes(), MeshShape(), options(zero=0))
    split = 16 * profile.block.split_parameters + 2 * 32000 * 1024
    share = (split / 4 + profile.num_parameters - split) / profile.num_parameters
    assert apart.seconds["accumulation"] == pytest.approx(
        whole.seconds["accumulation"] * share
    )


def test_a_single_micro_batch_sums_nothing():
    found = predict(model(), nodes(), MeshShape(), options(micro_batch=64))
    assert found.seconds["accumulation"] == 0


@pytest.mark.parametrize(
    ("shape", "crosses"),
    [
        (MeshShape(pipeline=8), False),
        (MeshShape(pipeline=2, tensor=4), False),
        (MeshShape(pipeline=8, shard=2), True),
        (MeshShape(pipeline=4, tensor=4), True),
        (MeshShape(pipeline=2, shard=8), True),
    ],
    ids=str,
)
def test_slowest_message_crosses_where_the_stages_span_nodes(shape, crosses):
    changes = {"sequence_parallel": False, "micro_batch": 1}
    found = predict(model(), nodes(), shape, options(**changes))
    message = send_s(nodes(), 2 * 1024 * 1024, between_nodes=crosses)
    micro_batches = 64 // shape.data_size
    assert found.collectives["pipeline"] == pytest.approx(2 * micro_batches * message)


@pytest.mark.parametrize(
    ("shape", "slows"),
    [(MeshShape(pipeline=4), False), (MeshShape(tensor=4), True)],
    ids=str,
)
def test_hidden_collectives_slow_computing_down_and_hidden_messages_do_not(
    shape, slows
):
    hardware = nodes(efficiency=dataclasses.replace(PERFECT, contention=0.5))
    hidden = options(overlap_pipeline=1.0, overlap_tensor=1.0)
    found = predict(model(), hardware, shape, hidden)
    (axis,) = shape.used()
    assert found.collectives[axis] > 0
    assert found.seconds[axis] == 0
    slowed = found.collectives[axis] * 0.5 if slows else 0.0
    assert found.seconds["contention"] == pytest.approx(slowed)


def test_waiting_for_a_slow_network_takes_nothing_from_computing():
    shape, step = MeshShape(shard=16), options(global_batch=256, micro_batch=16)
    slowed = []
    for rate in (1e9, 2e9, 10e9):
        hardware = nodes(
            network=Path(bytes_per_s=rate),
            efficiency=dataclasses.replace(PERFECT, contention=0.5),
        )
        found = predict(model(), hardware, shape, step)
        share = found.seconds["contention"] / found.collectives["data"]
        slowed.append((found.seconds["contention"], share))
    (slowest, _), (slow, _), (_, share) = slowed
    assert slowest == pytest.approx(slow)
    # With cards as fast as links it costs what a collective on links costs.
    assert 0.45 <= share <= 0.5


@pytest.mark.parametrize(("pipeline", "rate"), [(2, 100e9), (16, 10e9)])
def test_ends_of_a_pipeline_sum_the_gradients_of_a_tied_table(pipeline, rate):
    shape, step = MeshShape(pipeline=pipeline), options()
    apart, tied = (
        predict(model(tied=flag), nodes(), shape, step).seconds["data"]
        for flag in (False, True)
    )
    assert tied - apart == pytest.approx(32000 * 1024 * step.reduce_bytes / rate)


def test_sequence_parallel_divides_what_lies_between_regions():
    shape = MeshShape(tensor=4)
    apart = predict(model(), nodes(), shape, options(sequence_parallel=True))
    whole = predict(model(), nodes(), shape, options(sequence_parallel=False))
    assert apart.memory["activations"] < whole.memory["activations"]
    assert apart.seconds["traffic"] < whole.seconds["traffic"]
    assert apart.seconds["tensor"] == whole.seconds["tensor"]


def test_gradients_of_experts_stay_with_the_ranks_that_hold_them():
    # All else is as large, so what the ranks along `expert` sum is the dense part.
    sparse = model(experts=8, active_experts=2, vocab=8)
    changes = {"zero": 0, "overlap_data": 0.0}
    alone = predict(sparse, nodes(), MeshShape(replicate=8), options(**changes))
    shared = predict(sparse, nodes(), MeshShape(expert=8), options(**changes))
    experts = 16 * sparse.block.expert_parameters
    share = 1 - experts / sparse.num_parameters
    assert shared.collectives["data"] == pytest.approx(
        alone.collectives["data"] * share
    )


def test_sequence_without_equal_parts_is_refused_only_where_it_is_divided():
    patches = model(seq=197)
    with pytest.raises(PlanError, match="a sequence of 197 does not divide by 2"):
        predict(patches, nodes(), MeshShape(tensor=2), options())
    found = predict(
        patches, nodes(), MeshShape(tensor=2), options(sequence_parallel=False)
    )
    assert found.step_s > 0


@given(share=st.floats(0.0, 1.0), axis=st.sampled_from(["tensor", "data", "pipeline"]))
def test_overlap_hides_and_never_adds(share, axis):
    shape = MeshShape(pipeline=2, shard=2, tensor=2)
    off = {"overlap_tensor": 0.0, "overlap_data": 0.0, "overlap_pipeline": 0.0}
    before = predict(model(), nodes(), shape, options(**off))
    after = predict(
        model(), nodes(), shape, options(**{**off, f"overlap_{axis}": share})
    )
    assert after.step_s <= before.step_s * (1 + 1e-9)
    assert after.collectives == before.collectives


def test_experts_share_parameters_and_exchange_tokens():
    profile = model(experts=8, active_experts=2)
    alone = predict(profile, nodes(), MeshShape(shard=8), options(zero=0))
    shared = predict(profile, nodes(), MeshShape(expert=8), options(zero=0))
    assert shared.memory["optimizer"] < alone.memory["optimizer"]
    assert shared.seconds["expert"] > 0
    assert alone.seconds["expert"] == 0
    # As many operations, whoever holds the experts.
    assert shared.seconds["attention"] == pytest.approx(alone.seconds["attention"])


@pytest.mark.parametrize(
    ("shape", "changes", "code", "words"),
    [
        (MeshShape(tensor=3), {}, "NOT_DIVISIBLE", "16 heads do not divide by 3"),
        (MeshShape(expert=2), {}, "NOT_DIVISIBLE", "0 experts do not divide by 2"),
        (MeshShape(context=3), {}, "NOT_DIVISIBLE", "a sequence of 1024"),
        (MeshShape(shard=3), {}, "NOT_DIVISIBLE", "a global batch of 64"),
        (MeshShape(shard=128), {}, "NOT_DIVISIBLE", "use a multiple of 128"),
        (MeshShape(pipeline=32), {}, "NOT_DIVISIBLE", "16 blocks do not fill 32"),
        (
            MeshShape(pipeline=3),
            {"even_stages": True},
            "NOT_DIVISIBLE",
            "16 blocks do not divide over 3",
        ),
        (
            MeshShape(pipeline=4),
            {"micro_batch": 32},
            "CONFIG",
            "needs as many micro-batches",
        ),
    ],
)
def test_meshes_that_do_not_fit_have_a_reason(shape, changes, code, words):
    with pytest.raises(PlanError, match=words) as caught:
        predict(model(), nodes(), shape, options(**changes))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"global_batch": 0}, "global_batch must be an integer of at least 1, got 0"),
        ({"weight_bytes": 0}, "weight_bytes must be an integer of at least 1, got 0"),
        ({"gathered_bytes": -2}, "gathered_bytes must be .* at least 1, got -2"),
        ({"gradient_bytes": 2.5}, "gradient_bytes must be .* at least 1, got 2.5"),
        ({"reduce_bytes": -4}, "reduce_bytes must be .* at least 1, got -4"),
        ({"optimizer_bytes": -8}, "optimizer_bytes must be .* at least 0, got -8"),
        ({"logit_bytes": -1}, "logit_bytes must be .* at least 0, got -1"),
        ({"micro_batch": 1.5}, "micro_batch must be an integer"),
        ({"schedule": "2f2b"}, "schedule must be one of gpipe, 1f1b"),
        ({"checkpointing": "some"}, "checkpointing must be one of none"),
        ({"zero": 4}, "zero must be one of 0, 1, 2, 3, got 4"),
        ({"overlap_tensor": 1.2}, "overlap_tensor must be from 0 to 1, got 1.2"),
        ({"reduce_rate_share": 0.0}, "must be above 0 and at most 1, got 0.0"),
        ({"reduce_rate_share": 1.5}, "must be above 0 and at most 1, got 1.5"),
    ],
)
def test_options_that_are_not_valid_are_refused(changes, words):
    with pytest.raises(PlanError, match=words):
        StepOptions(**{"global_batch": 8, **changes})


def test_unknown_number_format_is_named():
    with pytest.raises(ClusterSpecError, match="has no 'float8', only bfloat16"):
        predict(model(), nodes(), MeshShape(), options(dtype="float8"))
