"""Holds the first real steps of a training to what its plan promised."""

from __future__ import annotations

import itertools
import logging
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain_core._plan import Plan

logger = logging.getLogger(__name__)

_WARM_STEPS = 5
_STEPS = 50
_LATE = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """What a plan promised, and what training shows.

    Args:
        promised_s: Seconds of a step, the median of the search's final.
        seen_s: The median time from one step's begin to the next one's.
        steps: Steps that were seen.

    Example:
        >>> Promise(promised_s=0.10, seen_s=0.11, steps=50).ratio
        1.1
    """

    promised_s: float
    seen_s: float
    steps: int

    @property
    def ratio(self) -> float:
        """Seen over promised; above 1 training is slower than the plan said."""
        return round(self.seen_s / self.promised_s, 6)


class Watch:
    """Times the first steps from begin to begin, and tells once what came of them.

    What a loop does between steps, such as an evaluation, is in some of these times;
    the median leaves the rare ones out. Not thread-safe: one loop drives it.

    Args:
        promised_s: Seconds of a step, as promised.
    """

    def __init__(self, promised_s: float) -> None:
        """Has seen nothing."""
        self._promised_s = promised_s
        self._begins: list[float] = []
        self.promise: Promise | None = None

    @classmethod
    def of(cls, plan: Plan) -> Watch | None:
        """Returns a watch over what a plan promises; None if it promises nothing."""
        step_ms = plan.measured.get("step_ms")
        if not isinstance(step_ms, int | float) or not step_ms > 0:
            return None
        return cls(step_ms / 1e3)

    def step(self) -> bool:
        """Notes that a step begins; returns whether more are to be noted."""
        self._begins.append(time.perf_counter())
        if len(self._begins) <= _WARM_STEPS + _STEPS:
            return True
        begins = self._begins[_WARM_STEPS:]
        # A clock never goes back here, but a machine may sleep: the median stands.
        seen = [b - a for a, b in itertools.pairwise(begins)]
        self.promise = Promise(
            promised_s=self._promised_s, seen_s=statistics.median(seen), steps=len(seen)
        )
        if self.promise.ratio > _LATE:
            logger.warning(
                "steps take %.1f ms, %.0f%% more than the plan promised (%.1f ms); "
                "another load on the machine, or work between the steps, would explain "
                "it; if neither is there, search again",
                1e3 * self.promise.seen_s,
                100.0 * (self.promise.ratio - 1.0),
                1e3 * self._promised_s,
            )
        return False
