"""All meshes for a model, the fastest first, and why the others are not."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cost_hardware import model, nodes, options

from drivetrain_core import MeshShape
from drivetrain_core._errors import Code, PlanError
from drivetrain_parallel.cost import predict, rank_meshes

# One way to run a step, where the meshes themselves are looked at.
ONE_WAY = {"schedules": ("1f1b",), "checkpointing": ("full",), "micro_batches": (1,)}


def test_order_is_by_time_and_every_loser_has_a_reason():
    ranking = rank_meshes(model(), nodes(), 16, 64)
    times = [c.prediction.step_s for c in ranking.candidates]
    assert times == sorted(times)
    assert all(c.shape.size == 16 for c in ranking.candidates)
    lines = ranking.explain()
    assert len(lines) == len(ranking.candidates) + len(ranking.refused)
    for line in lines[1 : len(ranking.candidates)]:
        assert "x the time of the best" in line
    assert "%" in lines[0]


def test_candidate_holds_what_predicting_it_gives():
    best = rank_meshes(model(), nodes(), 8, 64).best
    again = predict(model(), nodes(), best.shape, best.options)
    assert again == best.prediction


def test_best_is_no_slower_than_any_single_way():
    ranking = rank_meshes(model(), nodes(), 8, 64)
    for shape in (MeshShape(shard=8), MeshShape(shard=4, tensor=2)):
        for micro_batch in (1, 2, 4):
            single = predict(
                model(), nodes(), shape, options(micro_batch=micro_batch, zero=2)
            )
            assert ranking.best.prediction.step_s <= single.step_s


def test_meshes_that_need_too_much_say_how_much():
    small = nodes(memory_bytes=12 * 2**30)
    large = model(hidden=4096, heads=32, layers=32)
    ranking = rank_meshes(large, small, 8, 64)
    refused = [r for r in ranking.refused if r.code is Code.MEMORY]
    assert any(r.shape == MeshShape(replicate=8) for r in refused)
    assert all("needs at least" in r.because and "GiB" in r.because for r in refused)
    for candidate in ranking.candidates:
        assert candidate.prediction.memory_bytes <= small.memory_bytes


def test_no_mesh_at_all_names_the_nearest_reasons():
    ranking = rank_meshes(model(), nodes(memory_bytes=2**20), 8, 64)
    assert ranking.candidates == ()
    with pytest.raises(
        PlanError, match=r"no mesh can run \(\d+ were tried\)"
    ) as caught:
        _ = ranking.best
    assert caught.value.code == "MEMORY"
    assert caught.value.fix


def test_batch_smaller_than_the_data_axes_refuses_those_meshes():
    ranking = rank_meshes(model(), nodes(), 16, 4, **ONE_WAY)
    assert all(c.shape.data_size <= 4 for c in ranking.candidates)
    reasons = [r.because for r in ranking.refused if r.shape.data_size > 4]
    assert reasons
    assert all("a global batch of 4" in reason for reason in reasons)


def test_tensor_parallel_stays_inside_a_node():
    ranking = rank_meshes(model(heads=32), nodes(), 64, 64, **ONE_WAY)
    shapes = [x.shape for x in (*ranking.candidates, *ranking.refused)]
    assert max(shape.tensor for shape in shapes) == 8
    assert {shape.pipeline for shape in shapes} == {1, 2, 4, 8, 16}


def test_experts_and_long_sequences_open_their_axes():
    experts = rank_meshes(model(experts=4, active_experts=2), nodes(), 8, 64, **ONE_WAY)
    assert any(c.shape.expert > 1 for c in experts.candidates)
    long = rank_meshes(model(seq=32768), nodes(), 8, 8, **ONE_WAY)
    assert any(c.shape.context > 1 for c in long.candidates)
    short = rank_meshes(model(), nodes(), 8, 64, **ONE_WAY)
    assert all(c.shape.context == c.shape.expert == 1 for c in short.candidates)


def test_only_what_is_given_is_searched():
    ranking = rank_meshes(
        model(),
        nodes(),
        8,
        64,
        shapes=[MeshShape(pipeline=2, shard=4)],
        schedules=("interleaved_1f1b",),
        checkpointing=("full",),
        zero=(3,),
        micro_batches=(2,),
        stages_per_rank=(4,),
    )
    assert ranking.num_predictions == 1
    found = ranking.best.options
    assert (found.schedule, found.stages_per_rank) == ("interleaved_1f1b", 4)
    assert (found.checkpointing, found.zero, found.micro_batch) == ("full", 3, 2)


def test_a_mesh_that_no_schedule_fits_is_refused_with_the_reason():
    shapes = [MeshShape(pipeline=16), MeshShape(pipeline=64)]
    one_way = {**ONE_WAY, "schedules": ("interleaved_1f1b", "1f1b")}
    ranking = rank_meshes(
        model(layers=16),
        nodes(),
        16,
        64,
        shapes=shapes,
        stages_per_rank=(2,),
        **one_way,
    )
    reasons = [r.because for r in ranking.refused]
    assert "16 ranks of 2 stages need 32 blocks" in reasons[0]
    assert [r.fix.partition(" at most")[0] for r in ranking.refused] == [
        "use stages_per_rank=1",
        "use pipeline=16",
    ]
    none = rank_meshes(
        model(),
        nodes(),
        2,
        64,
        shapes=[MeshShape(pipeline=2)],
        stages_per_rank=(3,),
        **ONE_WAY,
    )
    assert none.refused[0].because == "no schedule has 3 stages a rank: 1f1b has 1"


def test_sequence_without_equal_parts_is_not_divided():
    ranking = rank_meshes(model(seq=197), nodes(), 8, 64, **ONE_WAY)
    found = [c for c in ranking.candidates if c.shape.tensor > 1]
    assert found
    assert not any(c.options.sequence_parallel for c in found)


@pytest.mark.parametrize(("num_devices", "global_batch"), [(0, 8), (8, 0), (8.0, 8)])
def test_numbers_that_are_none_are_refused(num_devices, global_batch):
    with pytest.raises(PlanError, match="must be an integer of at least 1"):
        rank_meshes(model(), nodes(), num_devices, global_batch)


def test_ranking_needs_no_torch():
    code = (
        "import sys; from drivetrain_parallel.cost import rank_meshes; "
        "import drivetrain_parallel.cli, drivetrain_parallel.simulate.command; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
