"""Stages wrapped by FSDP2 and replicate, compiled, checkpointed, and refused."""

import pipeline_models as pm
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from drivetrain_core import PlanError
from drivetrain_parallel.pipeline import (
    PipelineStep,
    build_stages,
    stages_of_rank,
    stages_per_rank,
)
from drivetrain_parallel.torch_internals import replicate_module
from drivetrain_testing import run_ranks

ONE = pytest.param("1f1b", marks=pytest.mark.faults)
ZBV = pytest.param("zbv_zero_bubble", marks=pytest.mark.faults)
INTERLEAVED = pytest.param("interleaved_1f1b", marks=pytest.mark.faults)
NUM = 4
WEIGHTS = [1 / NUM] * NUM


def _fsdp(stage, mesh, **options):
    for block in stage.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True, **options)
    fully_shard(stage, mesh=mesh, reshard_after_forward=False, **options)


def _replicate(stage, mesh):
    for block in stage.blocks:
        replicate_module(block, mesh=mesh)
    replicate_module(stage, mesh=mesh)


def _checkpointed(stage, mesh):
    layers = stage.model.layers
    for index, block in enumerate(list(layers)):
        if any(block is own for own in stage.blocks):
            layers[index] = checkpoint_wrapper(block)


def _compiled(stage, mesh):
    for block in stage.blocks:
        block.compile(backend="aot_eager")


def _bf16(stage, mesh):
    _fsdp(stage, mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def _train(wrap, schedule, data_size):
    """Returns how far three steps are from one process, on a mesh of two stages."""
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2, data_size), mesh_dim_names=("pipeline", "data"))
    group, data = mesh["pipeline"].get_group(), mesh["data"]
    steps = [
        [pm.token_batch(size=2 * data_size, seed=10 * step + n) for n in range(NUM)]
        for step in range(3)
    ]
    expected = pm.train_whole(pm.build(pm.Decoder), pm.token_loss, steps, WEIGHTS)
    per_rank = stages_per_rank(schedule)
    model, plan = pm.make(pm.Decoder, pm.token_loss, pm.token_batch(), 2 * per_rank)
    mine = stages_of_rank(
        schedule, rank=group.rank(), num_ranks=2, stages_per_rank=per_rank
    )
    stages = build_stages(model, plan, mine, pm.token_loss)
    for stage in stages:
        wrap(stage, data)
    step = PipelineStep(stages, plan, schedule=schedule, group=group)
    unique = list({id(p): p for s in stages for p in s.parameters()}.values())
    optimizer = torch.optim.SGD(unique, lr=0.3, momentum=0.9)
    worst = 0.0
    for parts, one in zip(steps, expected[0], strict=True):
        own = [
            {"ids": part["ids"].chunk(data_size)[data.get_local_rank()]}
            for part in parts
        ]
        loss = step.run(own, WEIGHTS) / data_size
        dist.all_reduce(loss, group=data.get_group())
        worst = max(worst, abs(float(loss) - one))
        optimizer.step()
        optimizer.zero_grad()
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [ONE, INTERLEAVED, "zbv_zero_bubble"])
def test_stages_are_sharded_by_fsdp(schedule):
    # A zero-bubble schedule over blocks that are resharded after their forward trains
    # nothing in them, unless the step sees to it.
    assert max(run_ranks(_train, 4, _fsdp, schedule, 2)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", ZBV])
def test_stages_are_replicated(schedule):
    assert max(run_ranks(_train, 4, _replicate, schedule, 2)) < 1e-5


@pytest.mark.faults
def test_activations_cross_in_full_precision_whatever_blocks_compute_in():
    assert max(run_ranks(_train, 4, _bf16, "1f1b", 2)) < 0.1


@pytest.mark.parametrize("schedule", ["1f1b", ZBV])
def test_blocks_are_recomputed(schedule):
    assert max(run_ranks(_train, 2, _checkpointed, schedule, 1)) < 1e-5


@pytest.mark.faults
@pytest.mark.parametrize("schedule", ["1f1b", "zbv_zero_bubble"])
def test_blocks_are_compiled(schedule):
    assert max(run_ranks(_train, 2, _compiled, schedule, 1)) < 1e-5


def _refused():
    model, plan = pm.make(pm.Decoder, pm.token_loss, pm.token_batch(), 2)
    group = dist.group.WORLD
    mesh = init_device_mesh("cpu", (2,))
    (stage,) = build_stages(model, plan, (group.rank(),), pm.token_loss)
    reasons = []
    container = stage.model.layers
    place, block = next((i, b) for i, b in enumerate(container) if b in stage.blocks)
    container[place] = nn.parallel.DistributedDataParallel(block)
    with pytest.raises(PlanError) as caught:
        PipelineStep([stage], plan, schedule="1f1b", group=group)
    reasons.append(caught.value.because)
    container[place] = fully_shard(block, mesh=mesh)
    with pytest.raises(PlanError) as caught:
        PipelineStep([stage], plan, schedule="1f1b", group=group)
    reasons.append(caught.value.because)
    return reasons


def test_ddp_inside_and_an_unwrapped_stage_are_refused():
    for ddp, unwrapped in run_ranks(_refused, 2):
        assert "is wrapped by DistributedDataParallel" in ddp
        assert "wrap the StageModule last" in unwrapped


class HeadBias(pm.Block):
    """Also returns a bias of its own heads, which a rank may hold a part of."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(pm.LENGTH, 4)
        self.parts = 1

    def forward(self, hidden, bias=None):
        own = self.bias.weight.chunk(self.parts, 1)[0] if bias is None else bias
        return super().forward(hidden) + own.sum() / own.shape[1], own


class Biased(nn.Module):
    """Hands the first block's bias from block to block."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(pm.VOCAB, pm.WIDTH)
        self.layers = nn.ModuleList(HeadBias() for _ in range(4))
        self.head = nn.Linear(pm.WIDTH, pm.VOCAB)

    def forward(self, ids):
        hidden, bias = self.tokens(ids), None
        for layer in self.layers:
            hidden, bias = layer(hidden, bias=bias)
        return self.head(hidden)


def _parts(schedule):
    """Returns the shapes at the boundaries once rank-local parts are known."""
    torch.set_num_threads(1)
    per_rank = stages_per_rank(schedule)
    model, plan = pm.make(Biased, pm.token_loss, pm.token_batch(), 2 * per_rank)
    group = dist.group.WORLD
    mine = stages_of_rank(
        schedule, rank=group.rank(), num_ranks=2, stages_per_rank=per_rank
    )
    stages = build_stages(model, plan, mine, pm.token_loss)
    alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pipeline", "tensor"))
    for stage in stages:
        for block in stage.blocks:
            block.parts = 2
        # Distributed parameters are what tells that tensors may be parts.
        for module in stage.model.modules():
            if isinstance(module, nn.Linear):
                fully_shard(module, mesh=alone["tensor"])
        fully_shard(stage, mesh=alone["tensor"], reshard_after_forward=False)
    step = PipelineStep(stages, plan, schedule=schedule, group=group)
    loss = step.run([pm.token_batch(seed=n) for n in range(NUM)], WEIGHTS)
    other = pm.token_batch(size=3, length=4)
    shapes = {}
    for stage in stages:
        if not stage.is_first:
            shapes[stage.stage_index - 1] = stage.input_shapes(other)
        if not stage.is_last:
            shapes[stage.stage_index] = stage.output_shapes(other)
    return float(loss), {n: [shape for shape, _ in s] for n, s in shapes.items()}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", ZBV])
def test_ranks_may_send_their_own_part_of_a_tensor(schedule):
    first, second = run_ranks(_parts, 2, schedule)
    assert first[0] == second[0]
    for shapes in (first[1], second[1]):
        for crossing in shapes.values():
            assert crossing == [(3, 4, pm.WIDTH), (pm.LENGTH, 2)]
