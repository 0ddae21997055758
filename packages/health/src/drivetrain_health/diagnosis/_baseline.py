"""What a counter said a while ago, against which it is read now."""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

from drivetrain_core import ProgramError

_T = TypeVar("_T")
_PARTS = 6


class Baseline(Generic[_T]):
    """Earlier readings, of which the one of about `within_s` ago is compared with.

    Args:
        within_s: How long ago what is compared with was read, at least, once there is a
            reading as old as that.

    Raises:
        ProgramError: The time is not one.

    Example:
        >>> baseline = Baseline(60.0)
        >>> for now_s in (0.0, 30.0, 90.0):
        ...     baseline.add(now_s, f"at {now_s:g} s")
        >>> baseline.at(40.0), baseline.at(95.0), baseline.at(1000.0)
        ('at 0 s', 'at 30 s', 'at 90 s')
    """

    def __init__(self, within_s: float) -> None:
        if not 0 < within_s < math.inf:
            message = f"within_s must be a number of seconds above 0, got {within_s}"
            raise ProgramError(message)
        self.within_s = within_s
        self.every_s = within_s / _PARTS
        self._readings: deque[tuple[float, _T]] = deque()

    def is_due(self, now_s: float) -> bool:
        """Returns whether the newest reading is old enough for another one."""
        return not self._readings or now_s - self._readings[-1][0] >= self.every_s

    def add(self, now_s: float, value: _T) -> None:
        """Keeps a reading, if one is due.

        Args:
            now_s: When it was made, on a clock that does not go back.
            value: The reading.
        """
        if self.is_due(now_s):
            self._readings.append((now_s, value))

    def at(self, now_s: float) -> _T:
        """Returns the newest reading that is old enough; the oldest if none is.

        Args:
            now_s: The time, which does not go back: what is older is forgotten.
        """
        readings = self._readings
        while len(readings) > 1 and now_s - readings[1][0] >= self.within_s:
            readings.popleft()
        return readings[0][1]
