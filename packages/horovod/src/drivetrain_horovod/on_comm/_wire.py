"""Short messages by which ranks check that they mean the same thing."""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

import torch

from drivetrain_core import DistributedError
from drivetrain_horovod.on_comm._state import world

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_DIMS = 12


def gather_numbers(
    numbers: Sequence[int], *, device: torch.device | None = None
) -> list[list[int]]:
    """Returns the numbers of each rank; all give as many.

    Args:
        numbers: This rank's, of 64 bits.
        device: On which they travel.
    """
    group = world().group
    mine = torch.tensor(list(numbers), dtype=torch.int64, device=device)
    found = [torch.empty_like(mine) for _ in range(group.size())]
    group.allgather([found], [mine]).wait()
    return [one.tolist() for one in found]


def check_same(what: str, text: str, *, device: torch.device | None = None) -> None:
    """Checks that all ranks say the same.

    Args:
        what: What they talk of, for the message.
        text: What this rank says.
        device: On which it travels.

    Raises:
        DistributedError: They do not; all ranks get it.
    """
    digest = hashlib.sha256(text.encode()).digest()[:8]
    found = gather_numbers([int.from_bytes(digest, "big", signed=True)], device=device)
    others = [rank for rank, one in enumerate(found) if one != found[0]]
    if others:
        message = (
            f"ranks differ in {what}: rank {others[0]} is not as rank 0 is; this rank "
            f"has {text[:200]}"
        )
        raise DistributedError(message)


def gather_shapes(
    what: str, tensor: torch.Tensor, *, free_dims: int = 0
) -> list[list[int]]:
    """Returns the shape of each rank's tensor.

    Args:
        what: The collective, for the message.
        tensor: This rank's.
        free_dims: How many leading dimensions may differ.

    Raises:
        DistributedError: Dtypes or other dimensions differ, or there are too many or too
            few; all ranks get it.
    """
    shape = [*tensor.shape, *([-1] * _MOST_DIMS)][:_MOST_DIMS]
    dtype = zlib.crc32(str(tensor.dtype).encode())
    found = gather_numbers([dtype, tensor.dim(), *shape], device=tensor.device)
    most = max(one[1] for one in found)
    if most > _MOST_DIMS:
        message = f"{what} takes {_MOST_DIMS} dimensions at most, got {most}"
        raise DistributedError(message)
    shapes = [one[2 : 2 + one[1]] for one in found]
    for rank, one in enumerate(found):
        if one[:2] != found[0][:2] or one[2 + free_dims :] != found[0][2 + free_dims :]:
            message = (
                f"{what} needs one dtype and alike shapes: rank {rank} has the shape "
                f"{shapes[rank]}, rank 0 {shapes[0]}; this rank has {tensor.dtype}"
            )
            raise DistributedError(message)
    return shapes


def check_root(root_rank: int) -> None:
    """Raises a DistributedError if there is no such rank."""
    size = world().group.size()
    if not 0 <= root_rank < size:
        message = f"root_rank must be 0 to {size - 1}, got {root_rank}"
        raise DistributedError(message)
