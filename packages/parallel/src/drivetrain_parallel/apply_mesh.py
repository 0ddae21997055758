"""Application of a mesh: this rank keeps its stage, shards, sequence and experts.

Everything that needs another rank happens here in one order on all ranks. What averages
gradients comes later, around what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.utils import _sync_module_states

from drivetrain_core import Code, PlanError
from drivetrain_core.extending import is_meta_model, mark_as_part, mark_data_part
from drivetrain_parallel.collective_channel import GroupChannel
from drivetrain_parallel.context.context_blocks import share_sequence
from drivetrain_parallel.device_mesh import ParallelMesh, create_mesh
from drivetrain_parallel.expert.expert_layers import distribute, share_experts
from drivetrain_parallel.mesh_layout import MeshLayout
from drivetrain_parallel.micro_batches import micro_batches_of
from drivetrain_parallel.parallel_plan import ParallelPlan
from drivetrain_parallel.pipeline import build_stages, stages_of_rank
from drivetrain_parallel.pipeline.optimizer_probe import require_separate_steps
from drivetrain_parallel.pipeline.replicas import without_memory
from drivetrain_parallel.state.parallelized_model import whole_model
from drivetrain_parallel.tensor import apply_tensor_plan
from drivetrain_parallel.tensor.local_view import packed_of

if TYPE_CHECKING:
    from torch import nn

    from drivetrain_core import TrainingState
    from drivetrain_parallel.pipeline import StageModule

_SYNC_BYTES = 250 << 20


def apply_mesh(state: TrainingState) -> None:
    """Makes the mesh, and changes the model in place into this rank's part of it.

    Args:
        state: The program under construction; it holds the plan of the axes.

    Raises:
        PlanError: There is no such plan, or it is for another number of ranks.
    """
    plan = state.layout_plan
    if not isinstance(plan, ParallelPlan):
        raise PlanError(
            Code.REQUIRES,
            "mesh",
            because="nobody has planned how the model is laid over the mesh",
            fix="apply it through accelerate",
        )
    if plan.pipeline is not None:
        require_separate_steps(state.optimizer_source, state.module, plan.pipeline)
    mesh = create_mesh(device_type=state.device.type, **dict(plan.shape.items()))
    meta_model = None
    whole = whole_model(state.module)
    if is_meta_model(state.module):
        meta_model = without_memory(state.module)
    else:
        # Ranks may have drawn other weights; parts of them must not be mixed.
        group = torch.distributed.group.WORLD
        _sync_module_states(state.module, group, _SYNC_BYTES, 0, ())  # type: ignore[arg-type]
    layout = MeshLayout(state, plan, mesh, whole, meta_model)
    state.layout, state.mesh = layout, mesh.device_mesh
    if plan.tensor is not None:
        _draw_alike(state, mesh)
    if plan.pipeline is not None:
        layout.stages = _stages(state, plan, mesh)
        batch, stages = state.context.batch.size, plan.shape.pipeline
        # What `micro_batch` says is applied later, and wins.
        state.num_micro_batches = micro_batches_of([], stages, batch, state.data_size)
    for model in layout.models():
        mark_data_part(model, state.data_size, state.data_rank)
        _share(model, plan, mesh)
    if plan.context is not None:
        _share_sequence(layout, plan, mesh)
    for model in layout.models():
        if layout.stages or any(packed_of(module) for module in model.modules()):
            mark_as_part(model)


def _draw_alike(state: TrainingState, mesh: ParallelMesh) -> None:
    """Gives the ranks that share matrices one random state.

    Between the matrices they compute the same on copies of weights: with other dropouts
    the copies would drift apart.
    """
    group = mesh.group("tensor")
    assert group is not None
    seed = torch.empty((), dtype=torch.long).random_().to(state.device)
    torch.distributed.broadcast(seed, group_src=0, group=group)
    torch.manual_seed(int(seed))


def _stages(
    state: TrainingState, plan: ParallelPlan, mesh: ParallelMesh
) -> list[StageModule]:
    assert plan.pipeline is not None
    schedule = state.planned_config("schedule")
    mine = stages_of_rank(
        str(schedule.get("kind", "1f1b")),
        rank=mesh.place["pipeline"],
        num_ranks=plan.shape.pipeline,
        stages_per_rank=plan.pipeline.num_stages // plan.shape.pipeline,
    )
    return build_stages(state.module, plan.pipeline, mine, state.loss_of)


def _share(model: nn.Module, plan: ParallelPlan, mesh: ParallelMesh) -> None:
    tensor, expert = mesh.axis("tensor"), mesh.axis("expert")
    if plan.tensor is not None:
        assert tensor is not None
        apply_tensor_plan(
            model, tensor, plan.tensor, missing_ok=True, src_data_rank=None
        )
    if plan.expert is not None:
        assert expert is not None
        here = dict(model.named_modules())
        layers = [here[name] for name in plan.expert.layers if name in here]
        exchange = GroupChannel(expert.get_group())
        share_experts(layers, exchange, distribute(expert))


def _share_sequence(layout: MeshLayout, plan: ParallelPlan, mesh: ParallelMesh) -> None:
    axis = mesh.axis("context")
    assert plan.context is not None
    assert axis is not None
    exchange = GroupChannel(axis.get_group())
    hidden, split = plan.context.hidden, plan.context.split
    for stage in layout.stages:
        receives = stage.stage_index > 0
        blocks = list(stage.blocks)
        share_sequence(blocks, exchange, hidden, split, receives=receives)
    if not layout.stages:
        [(_, blocks)] = layout.units()
        share_sequence(blocks, exchange, hidden, split)
