"""Clips gradients to a total norm over all ranks, however parameters are laid out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from drivetrain_parallel.device_mesh import ParallelMesh
    from drivetrain_parallel.parallel_plan import ParallelPlan
    from drivetrain_parallel.pipeline import StageModule


@torch.no_grad()
def clip_grad_norm(
    parameters: Iterable[Tensor],
    max_norm: float,
    *,
    counted: Callable[[Tensor], float],
    norm_type: float = 2.0,
) -> Tensor:
    """Scales gradients down to a total norm over all ranks, and returns it.

    Each rank adds its part of what it holds, and one sum over all ranks is the norm of
    the whole gradient: with tensors that are sharded, replicated, on one stage of a
    pipeline or on several.

    Args:
        parameters: Those of this rank.
        max_norm: The largest norm that is left as it is.
        counted: Which part of a parameter's gradient this rank adds: one by the ranks
            that hold the same, or none where another tensor stands for it.
        norm_type: The order of the norm; it may be infinite.
    """
    found = [(p, p.grad) for p in parameters if p.grad is not None]
    local = [_local(gradient) for _, gradient in found]
    device = local[0].device if local else _device()
    # Never in less than single precision, and in double where gradients are.
    doubles = any(gradient.dtype == torch.float64 for gradient in local)
    dtype = torch.float64 if doubles else torch.float32
    total = torch.zeros((), dtype=dtype, device=device)
    is_largest = math.isinf(norm_type)
    for (parameter, _), gradient in zip(found, local, strict=True):
        part = counted(parameter)
        if part == 0.0:
            continue
        norm = torch.linalg.vector_norm(gradient, norm_type, dtype=dtype)
        if is_largest:
            total = torch.maximum(total, norm)
        else:
            total += norm**norm_type * part
    op = torch.distributed.ReduceOp
    torch.distributed.all_reduce(total, op.MAX if is_largest else op.SUM)
    if not is_largest:
        total = total ** (1.0 / norm_type)
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradient in local:
        gradient.mul_(scale.to(gradient.device))
    return total


def counted_parts(
    mesh: ParallelMesh, plan: ParallelPlan, stages: Sequence[StageModule]
) -> Callable[[Tensor], float]:
    """Returns which part of a parameter's gradient this rank adds to a norm.

    A parameter that several stages hold counts on the first of them: the others hold
    the same gradient, on this rank or on another one.

    Args:
        mesh: The ranks along the axes.
        plan: What each axis does to the model.
        stages: This rank's stages of a pipeline.
    """
    a_stage = mesh.shape.size // mesh.shape.pipeline
    first: set[int] = set()
    later: set[int] = set()
    if plan.pipeline is not None:
        for stage in stages:
            named = dict(stage.model.named_parameters(remove_duplicate=False))
            for one in plan.pipeline.shared:
                name = one.names.get(stage.stage_index)
                if name in named:
                    leads = stage.stage_index == one.owner
                    (first if leads else later).add(id(named[name]))

    def of(parameter: Any) -> float:
        if id(parameter) in later - first:
            return 0.0
        shards = 1
        for size, placement in zip(
            parameter.device_mesh.shape if hasattr(parameter, "device_mesh") else (),
            getattr(parameter, "placements", ()),
            strict=True,
        ):
            shards *= 1 if placement.is_replicate() else size
        return shards / a_stage

    return of


def _local(tensor: Any) -> Tensor:
    local = getattr(tensor, "to_local", None)
    found: Tensor = tensor if local is None else local()
    return found


def _device() -> torch.device:
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None else found
