"""Reads and writes quantities with their units: `80GiB`, `400Gb/s`, `10us`.

A number is read and written exactly: what `write_quantity` writes, `read_quantity`
reads back as the same value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER_AND_UNIT = re.compile(
    r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z][A-Za-z/]*)\s*"
)
_DECIMAL = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_SMALL = {"": 0, "m": 1, "u": 2, "n": 3}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of quantity: its units, and which of them it is written in.

    Args:
        units: The size of each unit, in the unit of the value.
        written: The units a fraction is written in, from the largest to the smallest;
            an integer is written in the shortest way there is.
        whole: Whether the value is an integer.
        example: How it may be written, for messages.
    """

    units: Mapping[str, Fraction]
    written: tuple[str, ...]
    whole: bool
    example: str


def _decimal(suffix: str, scale: Fraction = Fraction(1)) -> dict[str, Fraction]:
    return {f"{p}{suffix}": scale * 1000**power for p, power in _DECIMAL.items()}


def _written(suffix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{suffix}" for prefix in reversed(_DECIMAL))


_BINARY_BYTES = {f"{p}B": Fraction(1024**power) for p, power in _BINARY.items()}

BYTES = Quantity(
    units={**_decimal("B"), **_BINARY_BYTES},
    written=("B",),
    whole=True,
    example="80GiB",
)
BYTES_PER_SECOND = Quantity(
    units={**_decimal("B/s"), **_decimal("b/s", Fraction(1, 8))},
    written=_written("B/s"),
    whole=False,
    example="300GB/s",
)
BITS_PER_SECOND = Quantity(
    units={**_decimal("b/s"), **_decimal("B/s", Fraction(8))},
    written=_written("b/s"),
    whole=False,
    example="400Gb/s",
)
FLOPS = Quantity(
    units=_decimal("FLOP/s"),
    written=_written("FLOP/s"),
    whole=False,
    example="312TFLOP/s",
)
SECONDS = Quantity(
    units={f"{p}s": Fraction(1, 1000**power) for p, power in _SMALL.items()},
    written=("s", "ms", "us", "ns"),
    whole=False,
    example="10us",
)


def read_quantity(text: object, quantity: Quantity) -> int | float:
    """Returns the value of a quantity.

    Args:
        text: A number and a unit.
        quantity: What kind of quantity it must be.

    Raises:
        ValueError: It is something else; the message says what it must be.

    Example:
        >>> read_quantity("80GiB", BYTES)
        85899345920
        >>> read_quantity("100", SECONDS)
        Traceback (most recent call last):
        ...
        ValueError: must be a number with a unit, such as 10us; got '100'
    """
    match = _NUMBER_AND_UNIT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        message = (
            f"must be a number with a unit, such as {quantity.example}; got {text!r}"
        )
        raise ValueError(message)
    number, unit = match.groups()
    if unit not in quantity.units:
        units = ", ".join(quantity.units)
        message = f"has the unit {unit!r}; the units are {units}"
        raise ValueError(message)
    try:
        value = Fraction(number) * quantity.units[unit]
        result = float(value)
    except OverflowError:
        message = f"is too large: {text!r}"
        raise ValueError(message) from None
    if not quantity.whole:
        return result
    if value.denominator != 1:
        message = f"must be a whole number of {quantity.written[-1]}, got {text!r}"
        raise ValueError(message)
    return int(value)


def write_quantity(value: float, quantity: Quantity) -> str:
    """Returns a value with the largest unit in which it is short and exact.

    Args:
        value: The value, not negative.
        quantity: What kind of quantity it is.

    Example:
        >>> write_quantity(1e-5, SECONDS), write_quantity(300e9, BYTES_PER_SECOND)
        ('10us', '300GB/s')
    """
    if quantity.whole:
        scaled = {u: Fraction(value) / size for u, size in quantity.units.items()}
        texts = [f"{n}{unit}" for unit, n in scaled.items() if n.denominator == 1]
        return min(texts if value else ["0B"], key=len)
    for unit in quantity.written:
        number = Fraction(value) / quantity.units[unit]
        if number < 1:
            continue
        for text in (f"{float(number):.6g}", repr(float(number))):
            if read_quantity(text + unit, quantity) == value:
                return text + unit
    base = next(unit for unit, scale in quantity.units.items() if scale == 1)
    return f"{value!r}{base}"
