"""Partition of a state's tensors among the ranks, and the block that a rank saves."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_checkpoint._layout.safetensors_layout import DTYPE_BYTES, TORCH_NAMES
from drivetrain_checkpoint._layout.tensor_layout import (
    Layout,
    Mesh,
    TensorLayout,
    shape_of,
)
from drivetrain_core.native_library import without_memory
from drivetrain_core.services import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

DTYPES: Mapping[str, torch.dtype] = {
    code: getattr(torch, name) for code, name in TORCH_NAMES.items()
}
"""The dtypes that safetensors has, by their names there."""

CODES: Mapping[torch.dtype, str] = {dtype: code for code, dtype in DTYPES.items()}

_SPLIT_BYTES = 1 << 20


def layout_of(
    tensors: Mapping[str, Tensor],
    world_size: int,
    group: dist.ProcessGroup | None = None,
) -> Layout:
    """Returns who saves what of a state: every element is saved by one rank.

    What all ranks hold is dealt out by size, to the rank that has least so far; a
    tensor of more than a rank's share is split. Of a block that several ranks hold,
    its replicas take turns, by size as well. The result is the same on each rank.

    Args:
        tensors: The tensors by name, the same on each rank; DTensors are sharded.
        world_size: The number of ranks.
        group: The ranks that save together; the default group by default.

    Raises:
        TypeError: A tensor is on the meta device, nested, sparse, quantized, or of a
            dtype or a placement that cannot be saved.

    Example:
        >>> layout_of({"a": torch.ones(2), "b": torch.ones(2)}, 2).tensors[1].replica
        1
    """
    sizes = {name: _size(name, tensor) for name, tensor in tensors.items()}
    plain = {name for name, t in tensors.items() if not hasattr(t, "to_local")}
    share = max(sum(sizes[name] for name in plain) / world_size, _SPLIT_BYTES)
    everyone = Mesh((world_size,), tuple(range(world_size)))
    meshes: dict[object, int] = {everyone: 0}
    numbers: dict[int, int] = {}
    free = [(0, rank) for rank in range(world_size)]
    taken: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    found = []
    for name, tensor in tensors.items():
        shape, code = tuple(tensor.shape), CODES[tensor.dtype]
        if name not in plain:
            mesh_key = id(tensor.device_mesh)  # type: ignore[attr-defined]
            if mesh_key not in numbers:
                mesh = mesh_of(tensor)
                if group is not None:
                    ranks = (dist.get_group_rank(group, rank) for rank in mesh.ranks)
                    mesh = Mesh(mesh.shape, tuple(ranks))
                numbers[mesh_key] = meshes.setdefault(mesh, len(meshes))
            number = numbers[mesh_key]
            placements = _placements(name, tensor)
            replica = _take_turn(taken, list(meshes)[number], placements, sizes[name])
        elif sizes[name] > share and world_size > 1 and max(shape) >= world_size:
            number, replica = 0, 0
            placements = (f"S{shape.index(max(shape))}",)
        else:
            number, placements = 0, ("R",)
            load, replica = free[0]
            heapq.heapreplace(free, (load + sizes[name], replica))
        found.append(TensorLayout(name, code, shape, number, placements, replica))
    return Layout(tuple(meshes), tuple(found))  # type: ignore[arg-type]


def mesh_of(tensor: Any) -> Mesh:
    """Returns the mesh that a sharded tensor lies on, with ranks of the job."""
    mesh = tensor.device_mesh
    if isinstance(mesh, Mesh):
        return mesh
    return Mesh(tuple(mesh.mesh.shape), tuple(mesh.mesh.flatten().tolist()))


def specs_of(layout: Layout) -> dict[str, TensorSpec]:
    """Returns the tensors of a layout as they are over all ranks, by name."""
    return {
        t.name: TensorSpec(name=t.name, global_shape=t.shape, dtype=DTYPES[t.dtype])
        for t in layout.tensors
    }


def local_block(
    layout: Layout, entry: TensorLayout, tensor: Any, rank: int
) -> Tensor | None:
    """Returns what a rank saves of a tensor, sharing its memory, or None for nothing.

    Raises:
        TypeError: The tensor is laid out in a way that its placements do not say.
    """
    block = layout.block(entry, rank)
    if block is None:
        return None
    shape = shape_of(block)
    if hasattr(tensor, "to_local"):
        local: Tensor = tensor.to_local()
    else:
        local = tensor
        for dim, ((start, length), *_) in enumerate(block):
            if length != tensor.shape[dim]:
                local = local.narrow(dim, start, length)
    if tuple(local.shape) != shape:
        message = (
            f"this rank holds {list(local.shape)} of {entry.name}, but by its "
            f"placements {', '.join(entry.placements)} it should hold {list(shape)}"
        )
        raise TypeError(message)
    return local


def check_savable(name: str, tensor: Tensor) -> None:
    """Raises unless a tensor has values, laid out as a checkpoint holds them.

    Raises:
        TypeError: It is on the meta device, nested, sparse, quantized, of a dtype
            that safetensors has not, or has no memory of its own.

    Example:
        >>> check_savable("model.bias", torch.ones(2, device="meta"))
        Traceback (most recent call last):
        TypeError: model.bias is on the meta device, without values: make it with \
to_empty(), and initialize it, before it is saved
    """
    # A remote shard, in place of a tensor of another rank, is neither of these.
    if getattr(tensor, "is_meta", False):
        message = (
            f"{name} is on the meta device, without values: make it with to_empty(), "
            "and initialize it, before it is saved"
        )
        raise TypeError(message)
    if getattr(tensor, "is_nested", False):
        message = (
            f"{name} is a nested tensor, which a checkpoint cannot hold; save the list "
            "of its parts (unbind()), or its values and offsets"
        )
        raise TypeError(message)
    if tensor.dtype not in CODES or tensor.layout is not torch.strided:
        message = (
            f"{name} is {tensor.dtype}, {tensor.layout}, which a checkpoint cannot "
            "hold; convert it to a dense tensor of a plain dtype"
        )
        raise TypeError(message)
    is_whole = getattr(tensor, "is_cpu", False) and not hasattr(tensor, "to_local")
    if is_whole and (why := without_memory(tensor)):
        message = f"{name}, a {type(tensor).__name__}, {why}"
        raise TypeError(message)


def is_plain_memory(tensor: Tensor) -> bool:
    """Whether the bytes of a tensor are its values, in order, where the CPU sees them.

    Example:
        >>> is_plain_memory(torch.ones(2, 3)), is_plain_memory(torch.ones(2, 3).T)
        (True, False)
    """
    is_lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not is_lazy


def _size(name: str, tensor: Tensor) -> int:
    if name == "__metadata__":
        message = "safetensors has a use of its own for the name '__metadata__'"
        raise ValueError(message)
    check_savable(name, tensor)
    return DTYPE_BYTES[CODES[tensor.dtype]] * tensor.numel()


def _placements(name: str, tensor: Any) -> tuple[str, ...]:
    found = []
    for placement in tensor.placements:
        factor = getattr(placement, "split_factor", 1)
        if placement.is_replicate():
            found.append("R")
        elif hasattr(placement, "dim") and not placement.is_partial():
            dim = placement.dim % tensor.dim()
            split = f"S{dim}" if factor == 1 else f"S{dim}/{factor}"
            sections = ",".join(map(str, getattr(placement, "sections", ())))
            found.append(f"{split}:{sections}" if sections else split)
        else:
            message = (
                f"{name} is placed as {placement}, which a checkpoint cannot hold; "
                "redistribute it to Shard or Replicate first"
            )
            raise TypeError(message)
    return tuple(found)


def _take_turn(
    taken: dict[tuple[object, ...], list[tuple[int, int]]],
    mesh: Any,
    placements: tuple[str, ...],
    size: int,
) -> int:
    """Returns which replica of a block saves it: the one that has least so far."""
    axes = tuple(axis for axis, p in enumerate(placements) if p == "R")
    num_replicas = math.prod(mesh.shape[axis] for axis in axes)
    if num_replicas == 1:
        return 0
    loads = taken.setdefault((mesh, axes), [(0, at) for at in range(num_replicas)])
    load, replica = loads[0]
    heapq.heapreplace(loads, (load + size, replica))
    return replica
