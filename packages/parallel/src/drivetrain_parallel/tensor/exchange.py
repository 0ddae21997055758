"""Collectives along the tensor axis, forward and backward, of plain tensors.

Each pair is the other's derivative: where values are equal on all ranks, `enter` and
`split` lead into the part of the model in which they differ, `reduce` and `gather` lead
out of it. Where each rank has other tokens of a sequence, `gather_in` and `scatter_out`
do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_parallel.custom_gradient import custom_gradient
from drivetrain_parallel.torch_internals import (
    all_gather,
    all_reduce,
    on_each_rank,
    reduce_scatter,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def enter(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Returns the same values; the gradients of the ranks are summed."""
    return custom_gradient(x, _alias, lambda grad: _sum(grad, mesh))


def reduce(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Returns the sum over the ranks; the gradient goes back to each as it is."""
    return custom_gradient(x, lambda x: _sum(x, mesh), lambda grad: grad)


def gather(x: torch.Tensor, mesh: DeviceMesh, dim: int = -1) -> torch.Tensor:
    """Returns the ranks' parts joined along a dimension; each gets its gradient."""
    return custom_gradient(
        x, lambda x: _join(x, mesh, dim), lambda grad: _part(grad, mesh, dim)
    )


def split(x: torch.Tensor, mesh: DeviceMesh, dim: int = -1) -> torch.Tensor:
    """Returns this rank's part of equal values; the parts' gradients are joined."""
    return custom_gradient(
        x, lambda x: _part(x, mesh, dim), lambda grad: _join(grad, mesh, dim)
    )


def gather_in(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    """Returns the ranks' parts joined; each gets its part of the summed gradients."""
    return custom_gradient(
        x, lambda x: _join(x, mesh, dim), lambda grad: _part_of_sum(grad, mesh, dim)
    )


def scatter_out(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    """Returns this rank's part of the sum; the parts' gradients are joined."""
    return custom_gradient(
        x, lambda x: _part_of_sum(x, mesh, dim), lambda grad: _join(grad, mesh, dim)
    )


def _alias(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


def _sum(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    return all_reduce(on_each_rank(x).contiguous(), mesh.get_group())


def _join(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    return all_gather(on_each_rank(x).contiguous(), dim % x.ndim, mesh.get_group())


def _part_of_sum(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    _check_divides(x, mesh, dim)
    return reduce_scatter(on_each_rank(x).contiguous(), dim, mesh.get_group())


def _check_divides(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> None:
    if x.shape[dim] % mesh.size():
        message = (
            f"dimension {dim} of a tensor of shape {tuple(x.shape)} cannot be split over "
            f"the {mesh.size()} ranks of the tensor axis; pad it to a multiple"
        )
        raise ValueError(message)


def _part(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    _check_divides(x, mesh, dim)
    x, size = on_each_rank(x), x.shape[dim] // mesh.size()
    # A copy: what comes after may change it in place, which a view would not allow.
    return x.narrow(dim, mesh.get_local_rank() * size, size).clone()


def own_gradient(x: torch.Tensor) -> torch.Tensor:
    """Returns the same values; the gradient that goes back has memory of its own.

    Two parameters may get one gradient, or a part of it: those of `a + b`, for example.
    Autograd sees that of plain tensors, and not inside DTensors: what the next
    micro-batch adds to one would be in the other as well.
    """
    return custom_gradient(x, _alias, torch.clone)
