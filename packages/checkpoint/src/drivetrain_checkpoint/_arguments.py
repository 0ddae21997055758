"""Checks numbers and names that a user gives."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex


def count(name: str, value: object, least: int) -> int:
    """Returns a whole number.

    Args:
        name: What the argument is called.
        value: The argument.
        least: The smallest that is allowed.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is too small.

    Example:
        >>> count("keep", "3", 1)
        Traceback (most recent call last):
        TypeError: keep must be a whole number of at least 1, got '3'
    """
    message = f"{name} must be a whole number of at least {least}, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(message)
    if operator.index(value) < least:
        raise ValueError(message)
    return operator.index(value)


def amount(name: str, value: object) -> float:
    """Returns a finite number that is more than 0.

    Args:
        name: What the argument is called.
        value: The argument.

    Raises:
        TypeError: It is no number.
        ValueError: It is not more than 0, or not finite.

    Example:
        >>> amount("timeout_s", float("nan"))
        Traceback (most recent call last):
        ValueError: timeout_s must be a finite number of more than 0, got nan
    """
    message = f"{name} must be a finite number of more than 0, got {value!r}"
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(message)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(message) from error
    if not 0 < number < math.inf:
        raise ValueError(message)
    return number


def text(name: str, value: object) -> str:
    """Returns a text that is not empty.

    Args:
        name: What the argument is called.
        value: The argument.

    Raises:
        TypeError: It is no text.
        ValueError: It is empty.

    Example:
        >>> text("job", 3)
        Traceback (most recent call last):
        TypeError: job must be a name, got 3
    """
    if not isinstance(value, str):
        message = f"{name} must be a name, got {value!r}"
        raise TypeError(message)
    if not value:
        message = f"{name} must be a name, got an empty one"
        raise ValueError(message)
    return value


def mapping(name: str, value: object) -> Mapping[Any, Any]:
    """Returns an argument that is to be a mapping from names.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, Mapping):
        message = f"the {name} must be a mapping from names, got {type(value).__name__}"
        raise TypeError(message)
    return value
