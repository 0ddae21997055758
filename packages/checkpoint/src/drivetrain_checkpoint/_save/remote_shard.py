"""Remote shards: makes all ranks see the same tensors, though each holds some of them.

A state may have other names on each rank: the stages of a pipeline, a loader's own
position. A layout must be the same on all of them, so that each rank describes to the
others what it holds, and has a remote shard in place of what it does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard

from drivetrain_checkpoint._layout.partition import mesh_of
from drivetrain_checkpoint._layout.tensor_layout import Mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from drivetrain_checkpoint._rank_group import RankGroup


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """What a rank tells the others of a tensor that it holds.

    Args:
        dtype: The type of its elements.
        shape: Its shape over all ranks.
        mesh: The mesh that it lies on; None if it is no DTensor.
        placements: How it lies there.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    mesh: Mesh | None
    placements: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """A tensor that lies on a mesh of which this rank may be none.

    Args:
        dtype: The type of its elements.
        shape: Its shape over all ranks.
        device_mesh: The mesh.
        placements: How it lies there.
        own: What this rank holds of it, or makes of what it holds when it is asked;
            None if it is not on the mesh.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    device_mesh: Mesh
    placements: tuple[Any, ...]
    own: Tensor | Callable[[], Tensor] | None = None
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
        return self.own if isinstance(self.own, torch.Tensor) else self.own()


def on_mesh(name: str, tensor: Any) -> RemoteShard:
    """Returns a tensor of FSDP1 as one on a mesh, which holds the same shards.

    Raises:
        TypeError: Its shards are not those of `torch.chunk`, one for each rank.
    """
    whole = tensor.metadata()
    shards, shape = whole.shards_metadata, tuple(whole.size)
    dim = getattr(tensor.sharding_spec(), "dim", 0)
    length = -(-shape[dim] // len(shards))
    starts = [shard.shard_offsets[dim] for shard in shards]
    is_cut_once = all(
        shard.shard_sizes[i] == size
        for shard in shards
        for i, size in enumerate(shape)
        if i != dim
    )
    ranks = [shard.placement.rank() for shard in shards]
    is_even = starts == [length * number for number in range(len(shards))]
    if not is_cut_once or not is_even or len(set(ranks)) < len(ranks):
        message = (
            f"{name} is a ShardedTensor of uneven shards, or of several for one rank; "
            "make it a DTensor"
        )
        raise TypeError(message)
    group = tensor._process_group
    ranks = [dist.get_global_rank(group, rank) for rank in ranks]
    own = next((shard.tensor for shard in tensor.local_shards()), None)
    mesh = Mesh((len(shards),), tuple(ranks))
    dtype = whole.tensor_properties.dtype
    return RemoteShard(dtype, shape, mesh, (Shard(dim),), own)


def describe(tensors: Mapping[str, Tensor]) -> dict[str, TensorDescription]:
    """Returns what the other ranks need to know of the tensors of this one.

    Raises:
        TypeError: One of them is not a dense tensor.
    """
    found = {}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            message = f"{name} is {tensor.layout}, which a checkpoint cannot hold"
            raise TypeError(message)
        mesh = mesh_of(tensor) if hasattr(tensor, "device_mesh") else None
        placements = tuple(getattr(tensor, "placements", ()))
        shape = tuple(tensor.shape)
        found[name] = TensorDescription(tensor.dtype, shape, mesh, placements)
    return found


def merge_tensors(
    tensors: Mapping[str, Tensor],
    descriptions: Sequence[Mapping[str, TensorDescription]],
    group: RankGroup | None = None,
) -> dict[str, Any]:
    """Returns the tensors of all ranks, with remote shards for those of other ranks.

    Args:
        tensors: Those of this rank.
        descriptions: What each rank tells of its own.
        group: The ranks that save together; the default group by default.

    Raises:
        ValueError: Two ranks hold different tensors under one name.

    Example:
        >>> ours, theirs = {"a": torch.ones(2)}, {"b": torch.ones(3)}
        >>> list(merge_tensors(ours, [describe(ours), describe(theirs)]))
        ['a', 'b']
    """
    holders: dict[str, list[int]] = {}
    first: dict[str, TensorDescription] = {}
    for rank, of_rank in enumerate(descriptions):
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
        own, ranks = tensors.get(name), holders[name]
        if own is not None and (about.mesh or len(ranks) == len(descriptions)):
            found[name] = own
            continue
        of_job = tuple(group.global_rank(rank) if group else rank for rank in ranks)
        mesh = about.mesh or Mesh((len(ranks),), of_job)
        placements = about.placements or (Replicate(),)
        found[name] = RemoteShard(about.dtype, about.shape, mesh, placements, own)
    return found


def _text(about: TensorDescription) -> str:
    where = f" as {about.placements}" if about.placements else ""
    return f"{about.dtype} of {list(about.shape)}{where}"
