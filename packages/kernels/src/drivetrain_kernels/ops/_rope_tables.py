"""The angles of rotary embeddings: of each token's position and each pair of columns.

    angle(m, i) = m base^(-2 i / R),  i = 0 .. R/2 - 1

for position m and R rotated columns. Su et al., RoFormer, 2021, section 3.2:
https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_kernels._fast_path import is_watched

if TYPE_CHECKING:
    from torch import Tensor

_NUM_KEPT = 16  # tables in use at a time

_kept: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}


def rope_tables(
    positions: Tensor, rotary_dim: int, base: float = 10000.0, wide: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine of the angles.

    Args:
        positions: Integers of any shape.
        rotary_dim: How many columns are rotated, an even number.
        base: What the frequencies are powers of.
        wide: Whether the tables are float64 and not float32.

    Returns:
        Two tensors of the shape of `positions` and `rotary_dim / 2` columns.

    Example:
        >>> cos, sin = rope_tables(torch.tensor([0, 1]), 4)
        >>> sin
        tensor([[0.0000, 0.0000],
                [0.8415, 0.0100]])
    """
    # In float64, since in float32 late positions have angles with few digits left.
    place = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None].double() * base ** (-place / rotary_dim)
    dtype = torch.float64 if wide else torch.float32
    return angles.cos().to(dtype), angles.sin().to(dtype)


def counted_tables(
    length: int, rotary_dim: int, base: float, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the tables of the positions from 0 on, kept for the next call.

    Args:
        length: How many positions.
        rotary_dim: See `rope_tables`.
        base: Likewise.
        like: Has the device of the tables, which are float32, or wider if it is.

    Example:
        >>> one, other = (counted_tables(n, 4, 10.0, torch.ones(1)) for n in (3, 4))
        >>> one[0].shape, one[0].data_ptr() == other[0].data_ptr()
        (torch.Size([3, 2]), True)
    """
    device, wide = like.device, like.dtype == torch.float64
    if is_watched():
        # What a compiler, a fake mode or a transform makes is no table for another call.
        return rope_tables(torch.arange(length, device=device), rotary_dim, base, wide)
    # Lengths that grow by one, as in generation, share a table.
    size = 1 << max(0, length - 1).bit_length()
    key = (size, rotary_dim, base, device, wide)
    found = _kept.pop(key, None)
    if found is None:
        # What is made in inference mode could not be used in training afterwards.
        with torch.inference_mode(False):
            places = torch.arange(size, device=device)
            found = rope_tables(places, rotary_dim, base, wide)
        while len(_kept) >= _NUM_KEPT:
            _kept.pop(next(iter(_kept)), None)
    _kept[key] = found
    return found[0][:length], found[1][:length]


def packed_positions(cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    """Returns each token's position in its own sequence, without waiting.

    Args:
        cu_seqlens: Where the sequences begin, and where the last ends: `(N + 1,)`.
        num_tokens: How many tokens there are in all.

    Example:
        >>> packed_positions(torch.tensor([0, 3, 5]), 5)
        tensor([0, 1, 2, 0, 1])
    """
    token = torch.arange(num_tokens, device=cu_seqlens.device)
    ends = cu_seqlens[1:].to(token.dtype)
    sequence = torch.searchsorted(ends, token, right=True)
    return token - cu_seqlens.to(token.dtype)[sequence]
