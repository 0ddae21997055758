"""Programs over a mesh: the same losses, norms and errors as on one process."""

import json
from datetime import timedelta

import mesh_programs as programs
import pytest
import torch
import torch.distributed as dist

from drivetrain_core import Plan
from drivetrain_core._choice import Choice
from drivetrain_core._errors import Code, PlanError
from drivetrain_core.mesh_shape import MeshShape, mesh_of
from drivetrain_parallel.device_mesh import create_mesh
from drivetrain_parallel.micro_batches import micro_batches_of
from drivetrain_testing import RankError, run_ranks


def alone(mixes=False):
    torch.set_num_threads(1)
    return programs.train([], mixes)


def several(cases, mixes=False):
    """Several programs one after the other: ranks start once."""
    return [programs.train(strategy, mixes) for strategy in cases]


FOUR = [
    [("mesh", {"tensor": 2})],
    [("mesh", {"tensor": 2, "replicate": 2}), ("micro_batch", 4)],
    [("mesh", {"pipeline": 2}), ("fsdp", 2)],
    [("mesh", {"pipeline": 4}), ("micro_batch", 4)],
    [("mesh", {"pipeline": 2, "tensor": 2})],
    [("mesh", {"context": 2})],
    [("mesh", {"context": 2, "pipeline": 2})],
    [("mesh", {"context": 2, "tensor": 2})],
    [("mesh", {"pipeline": 2}), ("schedule", "interleaved_1f1b"), "ddp"],
    [("mesh", {"tensor": 2}), "sequence_parallel", "loss_parallel"],
    [("mesh", {"tensor": 2}), "activation_checkpoint"],
]


def near(found, expected):
    losses, norm = found
    assert losses == pytest.approx(expected[0], rel=2e-5)
    assert norm == pytest.approx(expected[1], rel=1e-4)


def timeouts():
    """Returns the time-outs of the groups of a mesh, in seconds."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=97))
    mesh = create_mesh(pipeline=2, shard=2, tensor=1)
    flat = mesh.axes("pipeline", "shard")
    groups = [mesh.group("pipeline"), mesh.group("shard"), flat.get_group()]
    cpu = torch.device("cpu")
    dist.barrier()  # a rank that ends would cut those that still connect
    return [group._get_backend(cpu).options._timeout.seconds for group in groups]


def test_groups_of_a_mesh_have_the_timeout_of_the_job():
    assert run_ranks(timeouts, 4, process_group=False) == [[97, 97, 97]] * 4


@pytest.mark.slow
def test_every_mesh_trains_as_one_process():
    expected = alone()
    for rank in run_ranks(several, 4, FOUR, timeout_s=240):
        for found, strategy in zip(rank, FOUR, strict=True):
            assert found[0] == pytest.approx(expected[0], rel=2e-5), strategy
            near(found, expected)


@pytest.mark.faults
def test_three_axes_at_once():
    strategy = [("mesh", {"pipeline": 2, "shard": 2, "tensor": 2})]
    (found,) = run_ranks(several, 8, [strategy], timeout_s=240)[5]
    near(found, alone())


@pytest.mark.slow
def test_experts_are_shared_with_copies_and_with_shards():
    expected = alone(mixes=True)
    cases = [
        [("mesh", {"expert": 2})],
        [("mesh", {"expert": 4}), "ddp"],
        [("mesh", {"expert": 2, "replicate": 2})],
        [("mesh", {"expert": 2, "pipeline": 2})],
    ]
    for rank in run_ranks(several, 4, cases, True, timeout_s=240):
        for found in rank:
            near(found, expected)


@pytest.mark.slow
def test_a_smaller_last_batch_is_trained_on():
    data = [*programs.batches(2), *programs.batches(1, size=4)]
    expected = programs.train([], data=data)
    strategy = [("mesh", {"pipeline": 2}), ("micro_batch", 4)]
    for found in run_ranks(programs.train, 2, strategy, False, data):
        near(found, expected)


def train_instance(strategy):
    """Trains with an optimizer that is handed over as it is, in two groups."""
    from drivetrain_core import accelerate

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = programs.Model()
    small = [p for n, p in model.named_parameters() if n.endswith("bias")]
    large = [p for n, p in model.named_parameters() if not n.endswith("bias")]
    groups = [{"params": large}, {"params": small, "lr": 0.1}]
    accelerated = accelerate(
        model,
        torch.optim.SGD(groups, lr=0.3, momentum=0.9),
        programs.batches(),
        programs.loss,
        strategy=strategy,
        progress=False,
    )
    losses = []
    for batch in accelerated.loader:
        value = accelerated.train_step(batch).clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(value)
            value /= torch.distributed.get_world_size()
        losses.append(float(value))
    sizes = [len(group["params"]) for group in accelerated.optimizer.param_groups]
    accelerated.close()
    return losses, sizes


def test_an_optimizer_that_stands_keeps_its_groups_on_every_stage():
    expected, whole = train_instance([])
    strategy = [("mesh", {"pipeline": 2})]
    found = run_ranks(train_instance, 2, strategy, timeout_s=120)
    for losses, sizes in found:
        assert losses == pytest.approx(expected, rel=2e-5)
        # Of one block at least: what a block costs is measured, and so is the cut.
        assert min(sizes) >= 8
    # Each parameter is in the group that it was in, on one of the stages: the weight that
    # the first and the last layer share is on both.
    whole[0] += 1
    assert [sum(of) for of in zip(*(sizes for _, sizes in found), strict=True)] == whole


def codes(cases):
    found = []
    for strategy, options in cases:
        with pytest.raises(PlanError) as caught:
            programs.train(strategy, **options)
        found.append((caught.value.code, str(caught.value)))
    return found


REFUSED = [
    ([("mesh", {"tensor": 3})], {}, Code.NOT_DIVISIBLE, "there are 4"),
    ([("mesh", {"tensor": 2, "shard": 4}), "fsdp"], {}, Code.NOT_DIVISIBLE, "8 ranks"),
    ([("mesh", {"shard": 4, "replicate": 2})], {}, Code.NOT_DIVISIBLE, "8 ranks"),
    ([("mesh", {"expert": 4})], {}, Code.NOT_APPLICABLE, "no layer of experts"),
    ([("mesh", {"shard": 4}), "ddp"], {}, Code.CONFLICT, "shards nothing"),
    ([("mesh", {"pipeline": 4})], {"own_loop": True}, Code.STEP_NOT_OWNED, "itself"),
    ([("mesh", {"pipeline": 2}), ("micro_batch", 3)], {}, Code.UNEVEN_MICROBATCH, ""),
    ([("schedule", "gpipe")], {}, Code.REQUIRES, "mesh"),
    (
        [("mesh", {"pipeline": 2}), "sequence_parallel"],
        {},
        Code.REQUIRES,
        "tensor axis",
    ),
    ([("mesh", {"pipeline": 2, "tensor": 2}), "loss_parallel"], {}, Code.CONFLICT, ""),
]


@pytest.mark.slow
def test_what_cannot_be_is_refused_on_every_rank_with_its_reason():
    cases = [(strategy, options) for strategy, options, _, _ in REFUSED]
    for rank in run_ranks(codes, 4, cases, timeout_s=120):
        for (code, text), (_, _, expected, part) in zip(rank, REFUSED, strict=True):
            assert code is expected, text
            assert part in text


def other_model():
    from drivetrain_core import accelerate

    blocks = 4 if torch.distributed.get_rank() else 2
    accelerate(
        lambda: programs.Model(blocks=blocks),
        programs.sgd,
        programs.batches(),
        programs.loss,
        strategy=[("mesh", {"tensor": 2})],
        progress=False,
    )


@pytest.mark.slow
def test_ranks_with_different_models_are_told():
    with pytest.raises(RankError, match="same model"):
        run_ranks(other_model, 2)


def saved(path):
    from drivetrain_core import accelerate

    accelerated = accelerate(
        programs.Model,
        programs.sgd,
        programs.batches(),
        programs.loss,
        strategy=[("mesh", {"tensor": 2}), ("fsdp", 3)],
        plan_out=path,
        progress=False,
    )
    return str(accelerated.plan)


@pytest.mark.slow
def test_a_plan_fits_another_number_of_data_ranks(tmp_path):
    path = tmp_path / "plan.yaml"
    run_ranks(saved, 2, str(path), timeout_s=120)
    assert "mesh" in {choice.name for choice in Plan.load(path).choices}
    (found, *_) = run_ranks(programs.train, 4, str(path), timeout_s=120)
    near(found, alone())


@pytest.mark.slow
def test_parallel_plan_survives_json():
    from drivetrain_core._program import Program
    from drivetrain_parallel.parallel_plan import ParallelPlan
    from drivetrain_parallel.planning import plan_parallel

    program = Program(
        model=programs.Model,
        optimizer=programs.sgd,
        data=programs.batches(),
        loss=programs.loss,
    )
    choices = [Choice("mesh", {"pipeline": 2, "tensor": 2, "context": 2})]
    plan = plan_parallel(
        program.build_model(), programs.batches()[0], program.loss_of, choices, 8
    )
    again = ParallelPlan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again.fingerprint() == plan.fingerprint()
    assert str(again.shape) == "pipeline=2 context=2 tensor=2"


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_axes_are_positive_integers(value):
    with pytest.raises(PlanError, match="tensor must be an integer of at least 1"):
        MeshShape(tensor=value)


def test_every_rank_has_a_place_of_its_own():
    shape = MeshShape(pipeline=2, replicate=3, shard=2, context=2, tensor=2)
    places = {tuple(shape.coordinates(rank).values()) for rank in range(shape.size)}
    assert len(places) == shape.size == 48
    with pytest.raises(ValueError, match="from 0 to 47"):
        shape.coordinates(48)


def test_what_is_open_takes_what_is_left():
    mesh = Choice("mesh", {"pipeline": 2, "replicate": 2})
    assert str(mesh_of([mesh], 16)) == "pipeline=2 replicate=2 shard=4"
    fsdp = Choice("fsdp", {"zero": 3, "shard_size": 2})
    found = mesh_of([Choice("mesh", {"tensor": 2}), fsdp], 16)
    assert str(found) == "replicate=4 shard=2 tensor=2"
    with pytest.raises(PlanError, match="shard_size=2"):
        mesh_of([Choice("mesh", {"shard": 4}), fsdp], 16)


@pytest.mark.parametrize(
    ("axes", "because"),
    [
        (
            {"tensor": 3},
            "tensor=3 takes 3 ranks or a multiple of them, and there are 4",
        ),
        ({"shard": 3}, "shard=3 takes 3 ranks or a multiple of them"),
        ({"shard": 2, "replicate": 4}, "replicate=4 shard=2 takes 8 ranks, and there"),
    ],
)
def test_axes_that_fit_no_world_are_told_as_they_were_given(axes, because):
    with pytest.raises(PlanError) as caught:
        mesh_of([Choice("mesh", axes)], 4)
    assert caught.value.because.startswith(because)


def test_an_unknown_axis_is_told_with_those_that_are_known():
    with pytest.raises(PlanError, match="there is no axis 'data'") as caught:
        MeshShape.of({"data": 2}, 4)
    assert "pipeline, replicate, shard" in caught.value.fix


def test_a_pipeline_is_filled():
    assert micro_batches_of([], 4, 64, 2) == 8
    assert micro_batches_of([], 4, 12, 2) == 6
    assert micro_batches_of([Choice("micro_batch", {"num": 3})], 4, 12, 2) == 3
