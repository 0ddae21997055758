"""What each phase of a search may take of its budget, and how steps fill that time.

Pure arithmetic. A budget is divided, not a number of passes: what takes a second a step
is looked at in fewer steps than what takes a millisecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# The program as written: until it has been observed, and until it has been measured.
_OBSERVED, _BASELINE = 0.11, 0.15
# To measure it once more, in a process where it was not observed.
_UNWATCHED = 0.03
# Forecasts spare trials; they must not take the time for them.
_FORECASTS = 0.08
# What the turns of one trial may take, within limits.
_TURNS, _LEAST_TURNS_S, _MOST_TURNS_S = 0.02, 1.0, 5.0
# What is kept for the end of a search for a second look, and what that may take.
_END, _SET = 0.3, 0.1
# The baseline runs beside trials while one of its steps is this part of the budget.
_BESIDE = 0.01


@dataclass(frozen=True, slots=True)
class PhaseShares:
    """The parts of a budget.

    Args:
        seconds: The budget.

    Example:
        >>> PhaseShares(180.0).baseline_s
        27.0
        >>> PhaseShares(600.0).turns_s, PhaseShares(30.0).turns_s
        (5.0, 1.0)
    """

    seconds: float

    @property
    def observed_s(self) -> float:
        """When the program as written shall have been observed, from the start on."""
        return _OBSERVED * self.seconds

    @property
    def baseline_s(self) -> float:
        """When it shall have been measured, from the start on."""
        return _BASELINE * self.seconds

    @property
    def unwatched_s(self) -> float:
        """What it may take to get ready again, where nobody observes it."""
        return _UNWATCHED * self.seconds

    @property
    def forecasts_s(self) -> float:
        """What all forecasts may take."""
        return _FORECASTS * self.seconds

    @property
    def turns_s(self) -> float:
        """What the turns of a trial may take, for as long as it is in the race."""
        return min(max(_TURNS * self.seconds, _LEAST_TURNS_S), _MOST_TURNS_S)

    @property
    def end_s(self) -> float:
        """What may be kept for the end, beyond what it takes at least."""
        return _END * self.seconds

    @property
    def set_s(self) -> float:
        """What a second set of processes may take, for time to be kept for it."""
        return _SET * self.seconds


def fits_beside(step_s: float, budget_s: float) -> bool:
    """Returns whether the baseline's steps are short enough to run beside trials.

    Example:
        >>> fits_beside(0.5, 180.0), fits_beside(5.0, 180.0)
        (True, False)
    """
    return step_s <= _BESIDE * budget_s


def steps_within(step_s: float, seconds: float, *, least: int, most: int) -> int:
    """Returns how many steps fill a time, within limits.

    Example:
        >>> steps_within(0.7, 0.5, least=2, most=6), steps_within(0.1, 0.5, least=2, most=6)
        (2, 5)
    """
    return min(max(math.ceil(seconds / step_s), least), most)
