"""Permutations that need no memory: the place of each element is computed.

A balanced Feistel network is a permutation of 2^(2h) numbers whatever its round function
is (Luby and Rackoff, SIAM J. Comput. 17, 1988). One of n numbers walks along the larger
one's cycle until it is below n again (Black and Rogaway, CT-RSA 2002), which takes fewer
than four rounds in the mean.

Symbols: n numbers, h bits a half, K four round keys, M = 2^h - 1.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUM_ROUNDS = 4
# Odd, and below 2^31, so that products of halves and of words fit 63 bits.
_FIRST, _SECOND = 0x5BD1E995, 0x2C1B3C6D
_WORD = (1 << 32) - 1
_MOST = 1 << 60


@lru_cache(maxsize=256)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    return tuple(
        int.from_bytes(digest[4 * i : 4 * i + 4], "little") >> 1
        for i in range(_NUM_ROUNDS)
    )


def permuted(
    start: int, end: int, *, num: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Returns what stands at some places of a permutation.

    It takes time and memory in proportion to the places, not to the permutation.

    Args:
        start: The first place.
        end: One after the last place.
        num: n, how many numbers are permuted; at most 2^60.
        seed: Of the permutation.
        epoch: Which of the seed's permutations it is.

    Returns:
        int64, of `end - start` numbers from 0 to n - 1.

    Raises:
        ValueError: There are no such places.

    Example:
        >>> whole = permuted(0, 10, num=10, seed=3, epoch=1)
        >>> sorted(whole.tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        >>> (permuted(4, 6, num=10, seed=3, epoch=1) == whole[4:6]).all()
        np.True_
    """
    if not 0 <= start <= end <= num or num > _MOST:
        message = f"there are no places {start} to {end} of {num} numbers"
        raise ValueError(message)
    half = max(1, -(-(num - 1).bit_length() // 2))
    values = np.arange(start, end, dtype=np.int64)
    keys = _keys(seed, epoch)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _round_trip(values[outside], half, keys)
        outside = outside[values[outside] >= num]
    return values


def _round_trip(
    values: NDArray[np.int64], half: int, keys: tuple[int, ...]
) -> NDArray[np.int64]:
    """Applies all rounds: (L, R) becomes (R, L xor F(R, K))."""
    mask = (1 << half) - 1
    left, right = values >> half, values & mask
    for key in keys:
        mixed = (right * _FIRST + key) & _WORD
        mixed = ((mixed ^ (mixed >> 15)) * _SECOND) & _WORD
        left, right = right, left ^ ((mixed ^ (mixed >> 13)) & mask)
    return (left << half) | right
