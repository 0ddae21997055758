"""Hash of integers, for seeds that differ in all bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def mix(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns 32 well-mixed bits for each value: the finalizer of MurmurHash3.

    Example:
        >>> mix(np.array([0, 1, 2], dtype=np.uint32)).tolist()
        [0, 1364076727, 821347078]
    """
    h = values.astype(np.uint32)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h
