"""Checks of names and numbers that people write."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Collection


def check_known(kind: str, name: str, known: Collection[str]) -> None:
    """Raises an error unless a name is a known one.

    Args:
        kind: Of what it is the name.
        name: Which is checked.
        known: All names.

    Raises:
        ProgramError: It is none of them.
    """
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        message = f"no {kind} is called {name!r}, there are {', '.join(known)}{hint}"
        raise ProgramError(message)


def check_number(
    name: str, value: object, *, least: float = 0.0, most: float = math.inf
) -> None:
    """Raises an error unless a value is a number within bounds; infinity may be one.

    Args:
        name: What to call it.
        value: Which is checked.
        least: The smallest that may be.
        most: The largest.

    Raises:
        ProgramError: It is no number, or not within the bounds.
    """
    # NaN is neither less nor more.
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not least <= value <= most
    ):
        bounds = f"at least {least:g}"
        if most < math.inf:
            bounds = f"from {least:g} to {most:g}"
        message = f"{name} must be a number, {bounds}, got {value!r}"
        raise ProgramError(message)


def check_whole(name: str, value: object, *, least: int = 0) -> None:
    """Raises an error unless a value is a whole number that is large enough.

    Args:
        name: What to call it.
        value: Which is checked.
        least: The smallest that may be.

    Raises:
        ProgramError: It is no whole number, or less.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        message = f"{name} must be a whole number, at least {least}, got {value!r}"
        raise ProgramError(message)
