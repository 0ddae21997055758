"""The blocks of tensors that one rank saves, out of a packed state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_checkpoint._image import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

__all__ = ["CODES", "DTYPES", "Piece", "pieces_of"]

CODES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names that safetensors has for dtypes."""

DTYPES: Mapping[str, torch.dtype] = {code: dtype for dtype, code in CODES.items()}


@dataclass(frozen=True, slots=True)
class Piece:
    """One block of a tensor that this rank saves.

    Args:
        name: The tensor's name.
        dtype: Its dtype's name in safetensors.
        global_shape: Its shape over all ranks.
        offset: Where the block begins in each dimension.
        local: The block.
    """

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    local: Tensor


def pieces_of(tensors: Mapping[str, Tensor], rank: int, world_size: int) -> list[Piece]:
    """Returns what a rank saves of a state: every element is saved by one rank.

    What all ranks hold is dealt out by size, to the rank that has least so far; of a
    block that several ranks hold, the first of its replicas saves it.

    Args:
        tensors: The tensors by name, the same on each rank; DTensors are sharded.
        rank: This rank.
        world_size: The number of ranks.

    Raises:
        TypeError: A tensor is sparse, quantized, or of a dtype that cannot be saved.
    """
    pieces = []
    loads = [0] * world_size
    for name, tensor in tensors.items():
        code = CODES.get(tensor.dtype)
        if code is None or tensor.layout is not torch.strided:
            message = (
                f"{name} is {tensor.dtype}, {tensor.layout}, which a checkpoint cannot "
                "hold; convert it to a dense tensor of a plain dtype"
            )
            raise TypeError(message)
        shape = tuple(tensor.shape)
        if hasattr(tensor, "to_local"):
            piece = _block(name, code, tensor)
            if piece is not None:
                pieces.append(piece)
            continue
        owner = loads.index(min(loads))
        loads[owner] += DTYPE_BYTES[code] * tensor.numel()
        if owner == rank:
            pieces.append(Piece(name, code, shape, (0,) * len(shape), tensor))
    return pieces


def _block(name: str, code: str, tensor: Any) -> Piece | None:
    """Returns this rank's block of a DTensor, or None where another replica saves it."""
    from torch.distributed.tensor._utils import (
        compute_local_shape_and_global_offset,
    )

    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    replicas = [
        place
        for place, placement in zip(coordinate or (), placements, strict=False)
        if placement.is_replicate()
    ]
    local = tensor.to_local()
    if coordinate is None or any(replicas) or local.numel() == 0:
        return None
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    return Piece(name, code, tuple(tensor.shape), tuple(offset), local)
