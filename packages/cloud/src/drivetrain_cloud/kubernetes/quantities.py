"""Amounts as objects carry them: `500m`, `2Gi`, `8`."""

from __future__ import annotations

import re
from functools import lru_cache

from drivetrain_core import ProgramError

_UNITS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    **{f"{unit}i": 1 << (10 * at) for at, unit in enumerate("KMGTPE", start=1)},
}


@lru_cache(maxsize=4096)
def read_quantity(text: str | float) -> float:
    """Returns an amount as a number.

    Raises:
        ProgramError: It is no amount.

    Example:
        >>> read_quantity("500m"), read_quantity("2Ki"), read_quantity("1e3")
        (0.5, 2048.0, 1000.0)
    """
    parts = re.fullmatch(
        r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(|[numkMGTPE]|[KMGTPE]i)",
        str(text),
    )
    if parts is None:
        message = f"an amount is a number and a unit, as 500m or 2Gi, got {text!r}"
        raise ProgramError(message)
    return float(parts[1]) * _UNITS[parts[2]]
