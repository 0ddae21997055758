"""A tensor by its canonical name: what it is over all ranks, and which part lies here.

There is no wrapper's prefix and no rank in a name, so two runs of any number of ranks
agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """A tensor as all ranks together hold it.

    Args:
        name: The canonical name, such as `layers.0.weight` or
            `optimizer.exp_avg.layers.0.weight`.
        global_shape: Its shape over all ranks.
        dtype: The type of its elements.
    """

    name: str
    global_shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorPart(TensorSpec):
    """The block of a tensor that this rank holds.

    Ranks that hold the same block (replicas) have parts of equal name and offset. A
    rank that holds nothing of a tensor has a part with a zero in its local shape.

    Args:
        name: The canonical name.
        global_shape: The tensor's shape over all ranks.
        dtype: The type of its elements.
        offset: Where the block begins in each dimension of the global shape.
        local: The block itself, sharing memory with the live state: writing into it
            in place restores it.

    Example:
        >>> import torch
        >>> part = TensorPart(
        ...     name="weight",
        ...     global_shape=(4, 3),
        ...     dtype=torch.float32,
        ...     offset=(2, 0),
        ...     local=torch.ones(2, 3),
        ... )
        >>> part.local.shape, part.offset
        (torch.Size([2, 3]), (2, 0))
    """

    offset: tuple[int, ...]
    local: torch.Tensor
