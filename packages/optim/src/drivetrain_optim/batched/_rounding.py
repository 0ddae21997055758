"""Stochastic rounding of float32 to bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_optim.fused._table import is_dense

if TYPE_CHECKING:
    from torch import Tensor

_MASK = 0xFFFFFFFF


def round_to_bfloat16_(out: Tensor, values: Tensor, seed: int) -> None:
    """Rounds values up or down at random, so that the mean of many roundings is right.

    An element's random bits depend on the seed and on its position in memory alone, as
    in the fused kernels, so that all paths and every repetition agree.

    Args:
        out: Where the result is written, bfloat16.
        values: What is rounded, with the shape of `out`; taken as float32.
        seed: The seed, in [0, 2^32).

    Example:
        >>> out = torch.empty(4096, dtype=torch.bfloat16)
        >>> round_to_bfloat16_(out, torch.full((4096,), 1 + 2**-9), seed=7)
        >>> sorted(out.float().unique().tolist())
        [1.0, 1.0078125]
        >>> abs(out.float().mean().item() - (1 + 2**-9)) < 2e-4
        True
    """
    bits = values.float().contiguous().view(torch.int32).to(torch.int64) & _MASK
    index = torch.arange(bits.numel(), device=bits.device)
    if is_dense(out):
        index = index.as_strided(out.shape, out.stride())
    else:
        index = index.view(bits.shape)
    rounded = ((bits + _noise(index, seed)) >> 16) << 16
    # As a signed number, since torch has no views of unsigned ones everywhere.
    signed = torch.where(rounded >= 1 << 31, rounded - (1 << 32), rounded)
    result = signed.to(torch.int32).view(torch.float32)
    # Infinity has no neighbour to be rounded to, and NaN must stay one.
    out.copy_(torch.where(torch.isfinite(values), result, values.float()))


def _noise(index: Tensor, seed: int) -> Tensor:
    """Returns sixteen random bits for each index, as int64."""
    h = (index * 0x9E3779B9 + seed) & _MASK
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & _MASK
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & _MASK
    h = h ^ (h >> 16)
    return h & 0xFFFF
