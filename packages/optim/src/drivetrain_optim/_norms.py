"""Norms over tensors that may be split over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_optim import _native, _triton

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from drivetrain_optim._work import Work

__all__ = ["Shards", "grad_norm", "grad_scale", "sum_over_shards"]

Shards = tuple[Any, tuple[int, ...]] | None
"""A mesh and its dimensions over which a tensor is split; None for a whole tensor."""


def sum_over_shards(parts: Sequence[tuple[Shards, Tensor]]) -> list[Tensor]:
    """Returns sums over all ranks that hold shards, with one all-reduce for each mesh.

    Every rank must call it with parts of the same shapes in the same order. A mesh
    dimension over which tensors are replicated takes no part.

    Args:
        parts: How the tensors behind each part are split, and this rank's sums.
    """
    sums = [part for _, part in parts]
    together: dict[Shards, list[int]] = {}
    for position, (shards, _) in enumerate(parts):
        if shards is not None and shards[1]:
            together.setdefault(shards, []).append(position)
    for shards, positions in together.items():
        assert shards is not None
        mesh, axes = shards
        packed = torch.cat([sums[position].flatten() for position in positions])
        for axis in axes:
            dist.all_reduce(packed, group=mesh.get_group(axis))
        sizes = [sums[position].numel() for position in positions]
        for position, total in zip(positions, torch.split(packed, sizes), strict=True):
            sums[position] = total.view_as(sums[position])
    return sums


def grad_norm(works: Sequence[Work]) -> Tensor:
    """Returns the norm of all gradients together, a scalar in float64.

    Args:
        works: The batches of all groups.

    Returns:
        The norm; of sharded gradients, that of the whole ones, the same on every rank.
    """
    if not works:
        return torch.zeros((), dtype=torch.float64)
    parts = [(work.batch.kind.sharded, _grad_square(work)) for work in works]
    device = parts[0][1].device
    sums = [part.to(device) for part in sum_over_shards(parts)]
    return torch.stack(sums).sum().sqrt()


def grad_scale(norm: Tensor, max_norm: float) -> float | Tensor:
    """Returns the factor that bounds a norm; on the CPU a number.

    Example:
        >>> grad_scale(torch.tensor(4.0), 1.0), grad_scale(torch.tensor(0.0), 1.0)
        (0.25, 1.0)
    """
    scale = (max_norm / norm).clamp(max=1.0)
    return scale if scale.device.type != "cpu" else scale.item()


def _grad_square(work: Work) -> Tensor:
    if work.batch.kind.path == "native":
        assert work.table is not None
        squares = torch.from_numpy(_native.grad_squares(work.table.rows))
        return squares.sum()
    if work.batch.kind.path == "triton":
        return _triton.grad_squares(work).sum()
    norms = torch.stack(torch._foreach_norm(work.grads))
    return norms.to(torch.float64).square_().sum()
