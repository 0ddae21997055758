"""Makes all ranks see the same tensors, though each holds only some of them.

A state of DCP may have other names on each rank: the stages of a pipeline, a loader's own
position. A layout must be the same on all of them, so that each rank tells the others
what it holds, and has a stand-in for what it does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["Told", "spread", "tell"]


@dataclass(frozen=True, slots=True)
class _Grid:
    """What a layout asks of a device mesh.

    Args:
        shape: The grid's shape.
        ranks: The global ranks in it, the last dimension running fastest.
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def mesh(self) -> Tensor:
        """The ranks, in the grid."""
        return torch.tensor(self.ranks).view(self.shape)


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank says of a tensor that it holds.

    Args:
        dtype: The type of its elements.
        shape: Its shape over all ranks.
        grid: The mesh that it lies on; None if it is no DTensor.
        placements: How it lies there.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    grid: _Grid | None
    placements: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _StandIn:
    """A tensor that lies on a mesh of which this rank may be none."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device_mesh: _Grid
    placements: tuple[Any, ...]
    own: Tensor | None = None
    layout = torch.strided

    def dim(self) -> int:
        """Returns the number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Returns the number of elements."""
        return math.prod(self.shape)

    def to_local(self) -> Tensor:
        """Returns what this rank holds; it is asked only on ranks of the mesh."""
        assert self.own is not None
        return self.own


def tell(tensors: Mapping[str, Tensor]) -> dict[str, Told]:
    """Returns what the other ranks need to know of the tensors of this one.

    Raises:
        TypeError: One of them is not a dense tensor.
    """
    found = {}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            message = f"{name} is {tensor.layout}, which a checkpoint cannot hold"
            raise TypeError(message)
        grid = None
        if hasattr(tensor, "device_mesh"):
            mesh = tensor.device_mesh.mesh
            grid = _Grid(tuple(mesh.shape), tuple(mesh.flatten().tolist()))
        placements = tuple(getattr(tensor, "placements", ()))
        found[name] = Told(tensor.dtype, tuple(tensor.shape), grid, placements)
    return found


def spread(
    tensors: Mapping[str, Tensor],
    told: Sequence[Mapping[str, Told]],
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Returns the tensors of all ranks, with stand-ins for those that are not here.

    Args:
        tensors: Those of this rank.
        told: What each rank says of its own.
        group: The ranks that save together; the default group by default.

    Raises:
        ValueError: Two ranks hold different tensors under one name.

    Example:
        >>> ours, theirs = {"a": torch.ones(2)}, {"b": torch.ones(3)}
        >>> list(spread(ours, [tell(ours), tell(theirs)]))
        ['a', 'b']
    """
    holders: dict[str, list[int]] = {}
    first: dict[str, Told] = {}
    for rank, of_rank in enumerate(told):
        for name, about in of_rank.items():
            if first.setdefault(name, about) != about:
                message = (
                    f"{name} is {_text(first[name])} on rank {holders[name][0]}, but "
                    f"{_text(about)} on rank {rank}"
                )
                raise ValueError(message)
            holders.setdefault(name, []).append(rank)
    found: dict[str, Any] = {}
    for name, about in first.items():
        own = tensors.get(name)
        if own is not None and (about.grid or len(holders[name]) == len(told)):
            found[name] = own
            continue
        ranks = tuple(
            rank if group is None else dist.get_global_rank(group, rank)
            for rank in holders[name]
        )
        grid = about.grid or _Grid((len(ranks),), ranks)
        placements = about.placements or (Replicate(),)
        found[name] = _StandIn(about.dtype, about.shape, grid, placements, own)
    return found


def _text(about: Told) -> str:
    where = f" as {about.placements}" if about.placements else ""
    return f"{about.dtype} of {list(about.shape)}{where}"
