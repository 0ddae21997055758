"""What sizes and other numbers may be."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from drivetrain_memory._errors import MemoryUseError

CHUNK_BYTES = 2 * 2**20
"""What CUDA maps at a time at least."""

MOST_BYTES = 2**50
"""More than any device has, and far from where sums of sizes would wrap."""

MOST_NUMBER = 2**63 - 1
"""The largest address, stream or count that the library is given."""


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_integer(what: str, value: Any, least: int, most: int) -> None:
    """Checks a whole number.

    Raises:
        MemoryUseError: It is none, or not within the two bounds.
    """
    if not _is_integer(value) or not least <= value <= most:
        message = (
            f"{what} is a whole number of at least {least} and at most {most}, "
            f"not {value!r}"
        )
        raise MemoryUseError(message)


def require_capacity(capacity_bytes: Any) -> None:
    """Checks the bytes of a device.

    Raises:
        MemoryUseError: They are no whole number, none, or more than 1 PiB.
    """
    if not _is_integer(capacity_bytes) or not 1 <= capacity_bytes <= MOST_BYTES:
        message = (
            "a device has between 1 byte and 1 PiB, as a whole number, "
            f"not {capacity_bytes!r}"
        )
        raise MemoryUseError(message)


def require_headroom(headroom: Any) -> None:
    """Checks by what part more than the live peak is reserved; None is right too.

    Raises:
        MemoryUseError: It is less than 0, not finite, or no number.
    """
    if headroom is None:
        return
    is_number = isinstance(headroom, Real) and not isinstance(headroom, bool)
    if not is_number or not 0 <= headroom < math.inf:
        message = f"the headroom is at least 0, and finite, not {headroom!r}"
        raise MemoryUseError(message)
