"""Prediction of a plan's time and memory before its trial; it prunes, never decides."""

from __future__ import annotations

import dataclasses
import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drivetrain_core import Code, Rejected
from drivetrain_core.extending import arrange, describe, find
from drivetrain_search.prediction.memory_model import Fits, Forecast, fits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drivetrain_core import Choice, Measurement
    from drivetrain_search.descent import Choices
    from drivetrain_search.prediction.forecast import Forecaster
    from drivetrain_search.report.record import TrialRecord
    from drivetrain_search.space import SlotSpace

logger = logging.getLogger(__name__)

_GIB = 1 << 30
# Below this part of a step, what is expected of a slot says little.
_TELLING = 0.05
# An estimate is no measurement: only a plan that would be far behind goes untried.
_HOPELESS = 2.0
# A format whose products are this much slower cannot make a step faster.
_SLOW_FORMAT = 3.0
# Fake runs are those of a CPU: elsewhere an excess must be larger to be believed.
_ELSEWHERE = 1.25


class Predictor:
    """Rules plans out by the forecasts of memory and time.

    Args:
        forecaster: Makes them.
        capacity_bytes: The memory that a rank may use.
        on_cpu: Whether the program trains on a CPU.
        limit_s: Seconds to spend on forecasts in all; what is asked later is unknown.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        capacity_bytes: int,
        *,
        on_cpu: bool,
        limit_s: float,
    ) -> None:
        """Knows nothing yet."""
        self._left_s = limit_s
        self._forecaster = forecaster
        self._capacity = capacity_bytes
        self._believed = int(capacity_bytes * (1.0 if on_cpu else _ELSEWHERE))
        self._known: dict[Choices, Forecast] = {}

    def calibrate(self, baseline: Choices, measurement: Measurement) -> None:
        """Learns from the baseline how this machine compares with the estimates."""
        # First the rates, which take little time whatever the program is.
        with self._timed():
            known = self._forecaster.rates
        logger.debug("rates of this device: %s", known)
        with self._timed():
            self._forecaster.calibrate(baseline, measurement)
        self._known.clear()

    def in_order(
        self, space: Sequence[SlotSpace], base: Choices
    ) -> tuple[SlotSpace, ...]:
        """Returns the space with the most promising slot first, and candidate of each.

        Slots that go from mild to strong, and those that must be filled, keep the order
        of their candidates; slots of which little is expected keep theirs.
        """

        def expected(choice: Choice) -> float:
            slot = find(choice.name).slot
            rest = [c for c in base if find(c.name).slot is not slot]
            return self._of(arrange([*rest, choice])).step_time_s or 0.0

        def gain(entry: SlotSpace) -> float:
            now = self._of(base).step_time_s
            best = min(expected(choice) for choice in entry.candidates)
            found = 1.0 - best / now if now and best else 0.0
            return found if found > _TELLING else 0.0

        ordered = (
            entry
            if entry.monotone or not entry.optional or len(entry.candidates) == 1
            else dataclasses.replace(
                entry, candidates=tuple(sorted(entry.candidates, key=expected))
            )
            for entry in space
        )
        return tuple(sorted(ordered, key=gain, reverse=True))

    def skip_reason(self, choices: Choices, best_s: float) -> Rejected | None:
        """Returns why a plan is not worth its trial, or None.

        Args:
            choices: The plan.
            best_s: The measured step of the best plan so far.
        """
        forecast = self._of(choices)
        peak = forecast.peak_bytes
        if peak is not None and self._fits(forecast) is Fits.NO:
            needs = peak + self._forecaster.overhead_bytes
            return Rejected(
                plan=describe(choices),
                code=Code.MEMORY,
                because=f"no trial: it would need about {needs / _GIB:.2f} GiB of the "
                f"{self._capacity / _GIB:.2f} GiB that there are",
            )
        at_best = forecast.optimistic_step_time_s
        if at_best is None:
            return self._slow_format(choices)
        if at_best <= _HOPELESS * best_s:
            return None
        return Rejected(
            plan=describe(choices),
            code=Code.SLOWER,
            because=f"no trial: estimated at {at_best / best_s:.1f} times the best "
            "plan's step, even at best",
        )

    def _slow_format(self, choices: Choices) -> Rejected | None:
        """Returns why a plan is slow whose step could not be estimated, or None.

        Where there was no time to follow the program, the rates of the device are known.
        """
        low = any(
            str(choice.config.get("dtype", "")).startswith("bf16") for choice in choices
        )
        rates = self._forecaster.rates if low else None
        if rates is None:
            return None
        slower = rates.rate("float32") / rates.rate("bfloat16")
        if slower <= _SLOW_FORMAT:
            return None
        return Rejected(
            plan=describe(choices),
            code=Code.SLOWER,
            because=f"no trial: products in bf16 take {slower:.0f} times as long here as "
            "in fp32",
        )

    def mildest_first(self, plans: Sequence[Choices]) -> list[Choices]:
        """Returns the plans that may fit, the strongest alone if none seems to."""
        usable = [p for p in plans if self._fits(self._of(p)) is not Fits.NO]
        return usable or list(plans[-1:])

    def shortfall(self, choices: Choices, smaller: Sequence[Choices]) -> str:
        """Returns by how much a program does not fit, and what would be smallest."""
        peak = self._of(choices).peak_bytes
        if peak is None:
            return ""
        text = (
            f"; it needs about {peak / _GIB:.2f} GiB for its tensors, and "
            f"{self._capacity / _GIB:.2f} GiB are free"
        )
        sized = [(self._of(p).peak_bytes, p) for p in smaller]
        known = [(size, plan) for size, plan in sized if size is not None]
        if known:
            size, plan = min(known, key=lambda pair: pair[0])
            text += (
                f"; the smallest plan, {describe(plan)}, needs {size / _GIB:.2f} GiB"
            )
        return text

    def of_trials(self, records: Sequence[TrialRecord]) -> dict[str, Any]:
        """Returns what was expected of each trial, by its name."""
        return {
            record.name: self._known[record.choices]
            for record in records
            if record.choices in self._known
        }

    def _fits(self, forecast: Forecast) -> Fits:
        return fits(forecast, self._believed, self._forecaster.overhead_bytes)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Lets what is asked inside take the time that is left, and counts it."""
        begin = time.monotonic()
        most_s = min(self._forecaster.timeout_s, max(self._left_s, 0.0))
        self._forecaster.timeout_s = most_s
        try:
            yield
        finally:
            self._left_s -= time.monotonic() - begin

    def _of(self, choices: Choices) -> Forecast:
        if choices not in self._known:
            if self._left_s <= 0:
                return Forecast(because="the time for forecasts was used")
            with self._timed():
                self._known[choices] = self._forecaster.forecast(choices)
        return self._known[choices]
