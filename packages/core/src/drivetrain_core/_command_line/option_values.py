"""What options of commands take: numbers within a range, refused as they are parsed."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Number = TypeVar("_Number", int, float)


def integer(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """Returns the `type` of an option that takes a whole number.

    Args:
        least: The smallest that is allowed; None for no bound.
        most: The largest, likewise.

    Example:
        >>> integer(1)("8")
        8
        >>> integer(1)("0")
        Traceback (most recent call last):
        ...
        argparse.ArgumentTypeError: must be at least 1, got 0
    """

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            message = f"must be a whole number, got {text!r}"
            raise argparse.ArgumentTypeError(message) from None
        return _within(value, text, least, most)

    return parse


def number(
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    can_be_inf: bool = False,
) -> Callable[[str], float]:
    """Returns the `type` of an option that takes a number; NaN is none.

    Args:
        least: The smallest that is allowed; None for no bound.
        most: The largest, likewise.
        above: What it must be more than.
        can_be_inf: Whether `inf` is allowed, which mostly stands for no limit.

    Example:
        >>> number(above=0)("0.5"), number(can_be_inf=True)("inf")
        (0.5, inf)
        >>> number(0)("nan")
        Traceback (most recent call last):
        ...
        argparse.ArgumentTypeError: must be a number, got 'nan'
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            message = f"must be a number, got {text!r}"
            raise argparse.ArgumentTypeError(message)
        if math.isinf(value) and not can_be_inf:
            message = f"must be finite, got {text}"
            raise argparse.ArgumentTypeError(message)
        if above is not None and value <= above:
            message = f"must be more than {above:g}, got {text}"
            raise argparse.ArgumentTypeError(message)
        return _within(value, text, least, most)

    return parse


def _within(
    value: _Number, text: str, least: _Number | None, most: _Number | None
) -> _Number:
    """Returns a value that is in its range."""
    if (least is None or value >= least) and (most is None or value <= most):
        return value
    if least is None:
        span = f"at most {most:,g}"
    elif most is None:
        span = f"at least {least:,g}"
    else:
        span = f"from {least:,g} to {most:,g}"
    message = f"must be {span}, got {text}"
    raise argparse.ArgumentTypeError(message)
