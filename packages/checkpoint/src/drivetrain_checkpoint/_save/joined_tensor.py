"""Joined tensors: one state, made of the parts that ranks hold of a program on a mesh.

Each rank packs what it has, by the names of the model as written. A matrix that stands in
several parts on a rank, as fused ones do under tensor parallelism, is joined for a save.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_checkpoint._layout.partition import mesh_of
from drivetrain_checkpoint._save.remote_shard import (
    RemoteShard,
    describe,
    merge_tensors,
)
from drivetrain_core.services import PackedState
from drivetrain_core.services.chunked_tensor import ChunkedTensor
from drivetrain_core.services.state_entry import StateEntry, is_partial, merge_entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from drivetrain_checkpoint._rank_group import RankGroup


@dataclass(frozen=True, slots=True)
class _Sectioned:
    """A placement that splits each section of a dimension by itself."""

    dim: int
    split_factor: int
    sections: tuple[int, ...]

    def is_replicate(self) -> bool:
        """Returns False."""
        return False

    def is_partial(self) -> bool:
        """Returns False."""
        return False


def has_partial_entries(state: object) -> bool:
    """Returns whether a state has an entry of which each rank holds a part."""
    return isinstance(state, Mapping) and any(
        isinstance(value, StateEntry) for value in state.values()
    )


def gather_state(group: RankGroup, pack: Callable[[], PackedState]) -> PackedState:
    """Returns a state as all ranks together hold it; all of them call this.

    Args:
        group: The ranks.
        pack: Returns what this rank holds.

    Raises:
        CheckpointError: Another rank cannot pack.
        TypeError: A tensor's parts lie in a way that has no formula.
        ValueError: Ranks hold different values or tensors under one name.
    """

    def pack_own() -> tuple[PackedState, dict[str, Any]]:
        packed = pack()
        own = {name: _joined(name, tensor) for name, tensor in packed.tensors.items()}
        return packed, {name: t for name, t in own.items() if t is not None}

    packed, own = group.run_on_all(pack_own)
    parts = {key: e for key, e in packed.entries.items() if is_partial(e)}
    answers = group.all_gather((describe(own), parts))
    merged = {
        key: merge_entries(key, [of_rank[key] for _, of_rank in answers])
        for key in parts
    }
    tensors = merge_tensors(own, [described for described, _ in answers], group)
    return PackedState(tensors, {**packed.entries, **merged})


def _joined(name: str, tensor: Tensor) -> Any:
    """Returns a tensor as a layout asks for it; None if another rank saves it.

    Raises:
        TypeError: Its parts lie in a way that has no formula.
    """
    if not isinstance(tensor, ChunkedTensor):
        return tensor
    chunks = [chunk for chunk in tensor.chunks if chunk.writes]
    if not chunks:
        return None
    shape = tuple(tensor.shape)
    for chunk in chunks:
        if tuple(chunk.tensor.shape) == shape:
            return chunk.tensor.detach()
    chunks.sort(key=lambda chunk: chunk.offset)
    ends = zip(chunks[0].offset, chunks[-1].offset, strict=True)
    moving = [dim for dim, (first, last) in enumerate(ends) if first != last]
    found: list[Any] = [chunk.tensor for chunk in chunks]
    alike = {
        (getattr(t, "device_mesh", None), getattr(t, "placements", None)) for t in found
    }
    covered = sum(t.shape[moving[0]] for t in found) if moving else 0
    if len(moving) != 1 or len(alike) != 1 or covered != shape[moving[0]]:
        message = (
            f"{name} lies in {len(chunks)} parts on this rank that are no sections of "
            "one dimension; save it with DcpCheckpointer"
        )
        raise TypeError(message)
    if not hasattr(found[0], "device_mesh"):
        return torch.cat([t.detach() for t in found], moving[0])
    return RemoteShard(
        found[0].dtype,
        shape,
        mesh_of(found[0]),
        _placements(found, moving[0]),
        functools.partial(_join, found, moving[0]),
    )


def _placements(chunks: list[Any], dim: int) -> tuple[Any, ...]:
    """Returns how the sections lie, each by itself."""
    sizes = tuple(chunk.shape[dim] for chunk in chunks)
    return tuple(
        _Sectioned(one.dim, getattr(one, "split_factor", 1), sizes)
        if not one.is_replicate() and one.dim == dim
        else one
        for one in chunks[0].placements
    )


def _join(chunks: list[Any], dim: int) -> Tensor:
    return torch.cat([chunk.detach().to_local() for chunk in chunks], dim)
