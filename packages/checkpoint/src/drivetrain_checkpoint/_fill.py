"""Copies saved blocks into live tensors, however either is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._pieces import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from drivetrain_checkpoint._manifest import Part

__all__ = ["fill", "overlap"]


def overlap(
    offset: Sequence[int],
    shape: Sequence[int],
    other_offset: Sequence[int],
    other_shape: Sequence[int],
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Returns the common part of two blocks as slices of each, or None.

    Example:
        >>> overlap((2, 0), (4, 3), (0, 0), (3, 3))
        ((slice(0, 1, None), slice(0, 3, None)), (slice(2, 3, None), slice(0, 3, None)))
        >>> overlap((4,), (2,), (0,), (4,)) is None
        True
    """
    ours, theirs = [], []
    for a, n, b, m in zip(offset, shape, other_offset, other_shape, strict=True):
        first, last = max(a, b), min(a + n, b + m)
        if first >= last:
            return None
        ours.append(slice(first - a, last - a))
        theirs.append(slice(first - b, last - b))
    return tuple(ours), tuple(theirs)


def fill(
    targets: Mapping[str, Tensor],
    saved: Mapping[str, Sequence[tuple[Part, memoryview]]],
) -> None:
    """Writes tensors in place from what was saved of them.

    Args:
        targets: The tensors by name; a DTensor takes its own block.
        saved: The blocks of each tensor, with their bytes.

    Raises:
        CorruptCheckpointError: What was saved does not cover a tensor.
    """
    for name, target in targets.items():
        local, offset = _local(target)
        covered = 0
        for part, data in saved.get(name, ()):
            slices = overlap(offset, local.shape, part.offset, part.shape)
            if slices is None and local.dim():
                continue
            source = torch.frombuffer(data, dtype=torch.uint8) if len(data) else None
            if source is None:
                continue
            block = source.view(DTYPES[part.dtype]).view(part.shape)
            ours, theirs = slices or ((), ())
            with torch.no_grad():
                local[ours].copy_(block[theirs])
            covered += local[ours].numel()
        if covered != local.numel():
            message = (
                f"the checkpoint has {covered:,} of the {local.numel():,} elements of "
                f"{name} that this rank needs"
            )
            raise CorruptCheckpointError(message)


def _local(tensor: Any) -> tuple[Tensor, tuple[int, ...]]:
    """Returns a rank's own block of a tensor, and where it begins."""
    if not hasattr(tensor, "to_local"):
        return tensor.detach(), (0,) * tensor.dim()
    from torch.distributed.tensor._utils import (
        compute_local_shape_and_global_offset,
    )

    _, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tensor.detach().to_local(), tuple(offset)
