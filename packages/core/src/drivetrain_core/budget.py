"""How long a search may take: seconds in all, number of trials, seconds a trial."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain_core._errors import ProgramError

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The limits of a search.

    Args:
        seconds: Wall-clock seconds of the whole search, the final included.
        trials: Trials at most, the baseline included, the final's two not.
        trial_seconds: Seconds that one trial may take to get ready, and again to
            measure. None means 60, or five times what the baseline took if that is
            more, and twice that for a plan that compiles.

    Example:
        >>> Budget.of("10m").seconds
        600.0
        >>> Budget.of({"seconds": 90, "trials": 5}).trials
        5
    """

    seconds: float = 600.0
    trials: int = 24
    trial_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuses limits that are no numbers, and those that allow nothing."""
        _require_number("seconds", self.seconds, float)
        _require_number("trials", self.trials, int)
        if self.trial_seconds is not None:
            _require_number("trial_seconds", self.trial_seconds, float)

    @classmethod
    def of(cls, given: object) -> Budget:
        """Returns the budget that a user wrote.

        Args:
            given: Seconds, a duration such as `"90s"`, `"10m"` or `"1.5h"`, or a
                mapping of the fields.

        Raises:
            ProgramError: It is none of these.
        """
        if isinstance(given, Budget):
            return given
        if isinstance(given, Mapping):
            known = ("seconds", "trials", "trial_seconds")
            unknown = [key for key in given if key not in known]
            if unknown:
                message = f"a budget has the keys {known}, got {unknown[0]!r}"
                raise ProgramError(message)
            return cls(**given)
        if isinstance(given, str):
            match = _DURATION.fullmatch(given)
            if match:
                return cls(seconds=float(match[1]) * _UNITS_S[match[2]])
        elif isinstance(given, int | float) and given is not True:
            return cls(seconds=float(given))
        message = f"a budget is like '90s', '10m', '1h' or 600, got {given!r}"
        raise ProgramError(message)


def _require_number(name: str, value: Any, kind: type) -> None:
    fits = isinstance(value, int if kind is int else (int, float))
    if isinstance(value, bool) or not fits or math.isnan(value):
        message = f"{name} of a budget must be of type {kind.__name__}, got {value!r}"
        raise ProgramError(message)
    if value <= 0:
        message = f"{name} of a budget must be positive, got {value!r}"
        raise ProgramError(message)
