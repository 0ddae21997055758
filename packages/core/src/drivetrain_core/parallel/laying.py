"""Leaves this rank its part of the model: stage, shards of matrices, sequence, experts.

Everything that needs another rank happens here in one order on all ranks. What averages
gradients comes later, around what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.utils import _sync_module_states

from drivetrain_core._errors import Code, PlanError
from drivetrain_core.parallel.context.context_blocks import share_sequence
from drivetrain_core.parallel.device_mesh import ParallelMesh, create_mesh
from drivetrain_core.parallel.exchange import GroupExchange
from drivetrain_core.parallel.expert.expert_layers import distribute, share_experts
from drivetrain_core.parallel.meta.hollow import is_hollow
from drivetrain_core.parallel.pipeline.replicas import without_memory
from drivetrain_core.parallel.state.laid_model import whole_model
from drivetrain_core.parallel.tensor.local_view import packed_of
from drivetrain_core.services._part_of_model import mark_as_part

if TYPE_CHECKING:
    from torch import nn

    from drivetrain_core._state import TrainingState
    from drivetrain_core.parallel.parallel_plan import ParallelPlan

__all__ = ["lay_out"]

_SYNC_BYTES = 250 << 20


def lay_out(state: TrainingState) -> None:
    """Makes the mesh, and changes the model in place into this rank's part of it.

    Args:
        state: The program under construction; it holds the plan of the axes.

    Raises:
        PlanError: There is no such plan, or it is for another number of ranks.
    """
    plan = state.parallel_plan
    if plan is None:
        raise PlanError(
            Code.REQUIRES,
            "mesh",
            because="nobody has planned how the model is laid over the mesh",
            fix="apply it through accelerate",
        )
    mesh = create_mesh(device_type=state.device.type, **dict(plan.shape.items()))
    state.parallel_mesh, state.mesh = mesh, mesh.device_mesh
    state.whole_model = whole_model(state.module)
    if is_hollow(state.module):
        state.hollow_model = without_memory(state.module)
    else:
        # Ranks may have drawn other weights; parts of them must not be mixed.
        group = torch.distributed.group.WORLD
        _sync_module_states(state.module, group, _SYNC_BYTES, 0, ())  # type: ignore[arg-type]
    if plan.tensor is not None:
        _draw_alike(state, mesh)
    if plan.pipeline is not None:
        _keep_stages(state, plan, mesh)
    for model in state.models():
        _share(model, plan, mesh)
    if plan.context is not None:
        _share_sequence(state, plan, mesh)
    for model in state.models():
        if state.stages or any(packed_of(module) for module in model.modules()):
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


def _keep_stages(state: TrainingState, plan: ParallelPlan, mesh: ParallelMesh) -> None:
    from drivetrain_core.parallel.pipeline import build_stages, stages_of_rank

    assert plan.pipeline is not None
    schedule = state.planned_config("schedule")
    mine = stages_of_rank(
        str(schedule.get("kind", "1f1b")),
        rank=mesh.place["pipeline"],
        num_ranks=plan.shape.pipeline,
        stages_per_rank=plan.pipeline.num_stages // plan.shape.pipeline,
    )
    state.stages = build_stages(state.module, plan.pipeline, mine, state.loss_of)


def _share(model: nn.Module, plan: ParallelPlan, mesh: ParallelMesh) -> None:
    tensor, expert = mesh.axis("tensor"), mesh.axis("expert")
    if plan.tensor is not None:
        from drivetrain_core.parallel.tensor import apply_tensor_plan

        assert tensor is not None
        apply_tensor_plan(
            model, tensor, plan.tensor, missing_ok=True, src_data_rank=None
        )
    if plan.expert is not None:
        assert expert is not None
        here = dict(model.named_modules())
        layers = [here[name] for name in plan.expert.layers if name in here]
        exchange = GroupExchange(expert.get_group())
        share_experts(layers, exchange, distribute(expert))


def _share_sequence(
    state: TrainingState, plan: ParallelPlan, mesh: ParallelMesh
) -> None:
    axis = mesh.axis("context")
    assert plan.context is not None
    assert axis is not None
    exchange = GroupExchange(axis.get_group())
    hidden, split = plan.context.hidden, plan.context.split
    for stage in state.stages:
        receives = stage.stage_index > 0
        blocks = list(stage.blocks)
        share_sequence(blocks, exchange, hidden, split, receives=receives)
    if not state.stages:
        share_sequence(state.blocks(), exchange, hidden, split)
