"""What is predicted can be run: meshes are refused alike, and memory is the program's."""

import mesh_programs as programs
import pytest
from cost_hardware import model, nodes, options

from drivetrain_core import MeshShape
from drivetrain_core._choice import Choice
from drivetrain_core._errors import Code, PlanError
from drivetrain_core._program import Program
from drivetrain_parallel.axis_rules import heads_of_rank, require_provable
from drivetrain_parallel.cost import predict, rank_meshes
from drivetrain_parallel.planning import plan_parallel


@pytest.mark.parametrize("other", ["tensor", "context"])
def test_experts_beside_axes_that_they_are_not_proven_with_are_refused_alike(other):
    axes = {"expert": 2, other: 2}
    program = Program(
        model=lambda: programs.Model(mixes=True),
        optimizer=programs.sgd,
        data=programs.batches(),
        loss=programs.loss,
    )
    made, batch = program.build_model(), programs.batches()[0]
    with pytest.raises(PlanError) as planned:
        plan_parallel(made, batch, program.loss_of, [Choice("mesh", axes)], 4)
    with pytest.raises(PlanError) as predicted:
        predict(model(experts=4), nodes(), MeshShape(**axes), options())
    assert planned.value.code is Code.CONFLICT
    assert planned.value.because == predicted.value.because
    assert planned.value.fix == predicted.value.fix


@pytest.mark.parametrize("other", ["pipeline", "shard", "replicate"])
def test_experts_go_with_other_axes(other):
    require_provable(MeshShape(**{"expert": 2, other: 2}))


@pytest.mark.parametrize(("heads", "context"), [(8, 1), (8, 4), (6, 3), (0, 2)])
def test_heads_are_divided_evenly(heads, context):
    assert heads_of_rank(heads, context) * context == heads


def test_a_sequence_is_shared_by_no_more_ranks_than_have_heads():
    with pytest.raises(PlanError, match="context=3 does not divide 8 attention heads"):
        heads_of_rank(8, 3)
    ranking = rank_meshes(model(heads=16, seq=32768), nodes(), 64, 64)
    assert any(c.shape.context > 1 for c in ranking.candidates)
    for candidate in ranking.candidates:
        assert 16 // candidate.shape.tensor % candidate.shape.context == 0
    with pytest.raises(PlanError, match="context=8 does not divide 4 attention heads"):
        predict(model(heads=16), nodes(), MeshShape(context=8, tensor=4), options())


def test_keys_and_values_may_have_fewer_heads_than_ranks():
    profile = model(heads=16, kv_heads=2)
    assert predict(profile, nodes(), MeshShape(context=8), options()).step_s > 0


def test_experts_are_ranked_without_axes_that_they_are_not_proven_with():
    ranking = rank_meshes(model(experts=4, active_experts=2), nodes(), 16, 64)
    expert = [c.shape for c in ranking.candidates if c.shape.expert > 1]
    assert expert
    assert all(shape.tensor == shape.context == 1 for shape in expert)


def test_ranks_that_share_a_sequence_have_all_logits():
    one = options(micro_batch=1)
    whole = predict(model(), nodes(), MeshShape(shard=8), one)
    shared = predict(model(), nodes(), MeshShape(shard=4, context=2), one)
    assert shared.memory["logits"] == whole.memory["logits"]
    assert shared.memory["activations"] > whole.memory["activations"] / 2
    assert shared.seconds["matmul"] > whole.seconds["matmul"] / 2


def test_a_sequence_that_is_shared_is_not_split_between_matrices_as_well():
    ranking = rank_meshes(model(seq=32768), nodes(), 16, 16)
    both = [c for c in ranking.candidates if c.shape.context > 1]
    assert both
    assert not any(c.options.sequence_parallel for c in both)
