"""Clips gradients to a total norm over all ranks, however parameters are laid out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from drivetrain_core._state import TrainingState

__all__ = ["clip_grad_norm", "copies"]


@torch.no_grad()
def clip_grad_norm(
    parameters: Iterable[Tensor],
    max_norm: float,
    *,
    copies_of: Callable[[Tensor], int],
    norm_type: float = 2.0,
) -> Tensor:
    """Scales gradients down to a total norm over all ranks, and returns it.

    Each rank adds what it holds, divided by how many ranks hold the same, and one sum
    over all ranks is the norm of the whole gradient: with tensors that are sharded,
    replicated, on one stage of a pipeline or on several.

    Args:
        parameters: Those of this rank.
        max_norm: The largest norm that is left as it is.
        copies_of: How many ranks hold what this rank holds of a parameter.
        norm_type: The order of the norm; it may be infinite.
    """
    found = [(p, p.grad) for p in parameters if p.grad is not None]
    local = [_local(gradient) for _, gradient in found]
    device = local[0].device if local else _device()
    total = torch.zeros((), dtype=torch.float32, device=device)
    is_largest = math.isinf(norm_type)
    for (parameter, _), gradient in zip(found, local, strict=True):
        norm = torch.linalg.vector_norm(gradient, norm_type, dtype=torch.float32)
        if is_largest:
            total = torch.maximum(total, norm)
        else:
            total += norm**norm_type / copies_of(parameter)
    op = torch.distributed.ReduceOp
    torch.distributed.all_reduce(total, op.MAX if is_largest else op.SUM)
    if not is_largest:
        total = total ** (1.0 / norm_type)
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradient in local:
        gradient.mul_(scale.to(gradient.device))
    return total


def copies(state: TrainingState) -> Callable[[Tensor], int]:
    """Returns how many ranks hold what this rank holds of a parameter.

    Args:
        state: The program, laid over a mesh.
    """
    assert state.parallel_mesh is not None
    mesh, plan = state.parallel_mesh, state.parallel_plan
    a_stage = mesh.shape.size // mesh.shape.pipeline
    shared: dict[int, int] = {}
    if plan is not None and plan.pipeline is not None:
        for stage in state.stages:
            named = dict(stage.model.named_parameters(remove_duplicate=False))
            for one in plan.pipeline.shared:
                ranks = {index % mesh.shape.pipeline for index in one.names}
                for name in one.names.values():
                    if name in named:
                        shared[id(named[name])] = len(ranks)

    def of(parameter: Any) -> int:
        shards = 1
        for size, placement in zip(
            parameter.device_mesh.shape if hasattr(parameter, "device_mesh") else (),
            getattr(parameter, "placements", ()),
            strict=True,
        ):
            shards *= 1 if placement.is_replicate() else size
        return a_stage // shards * shared.get(id(parameter), 1)

    return of


def _local(tensor: Any) -> Tensor:
    local = getattr(tensor, "to_local", None)
    found: Tensor = tensor if local is None else local()
    return found


def _device() -> torch.device:
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None else found
