"""The random bits of dropout, from a seed alone, equal in every implementation.

Philox-4x32-10 of Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011
(https://doi.org/10.1145/2063384.2063405): the key is the seed, the counter is
(column / 4, row, 0), and its four words serve four neighbouring columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_WORD = 0xFFFFFFFF
_ROUND_A, _ROUND_B = 0xD2511F53, 0xCD9E8D57
_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85
_NUM_ROUNDS = 10


def threshold(p: float) -> int:
    """Returns the number of 32-bit words that drop an element: those below it.

    Args:
        p: The share to drop.

    Example:
        >>> threshold(0.5)
        2147483648
    """
    return round(p * 2**32)


def keep_mask(seed: Tensor, num_rows: int, num_columns: int, p: float) -> Tensor:
    """Returns which elements dropout keeps, as booleans `(num_rows, num_columns)`.

    Args:
        seed: An int64 of no dimensions; the mask is on its device.
        num_rows: How many rows.
        num_columns: How many columns.
        p: The share to drop.

    Example:
        >>> keep_mask(torch.tensor(1), 2, 5, 0.5).int()
        tensor([[1, 1, 1, 1, 1],
                [1, 0, 0, 0, 1]], dtype=torch.int32)
    """
    num_groups = (num_columns + 3) // 4
    groups = torch.arange(num_groups, device=seed.device)
    rows = torch.arange(num_rows, device=seed.device)[:, None]
    c0 = groups.expand(num_rows, num_groups)
    c1 = (rows & _WORD).expand(num_rows, num_groups)
    c2 = (rows >> 32).expand(num_rows, num_groups)
    c3 = torch.zeros_like(c0)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(_NUM_ROUNDS):
        # A product of two words overflows int64 and wraps, which keeps all its bits.
        low, high = c0 * _ROUND_A, c2 * _ROUND_B
        c0 = (high >> 32 & _WORD) ^ c1 ^ k0
        c2 = (low >> 32 & _WORD) ^ c3 ^ k1
        c1, c3 = high & _WORD, low & _WORD
        k0, k1 = (k0 + _KEY_A) & _WORD, (k1 + _KEY_B) & _WORD
    words = torch.stack((c0, c1, c2, c3), -1).flatten(1)
    return words[:, :num_columns] >= threshold(p)
