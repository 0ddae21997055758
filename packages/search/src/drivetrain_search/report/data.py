"""Data of a report: every trial of a search, and what was made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_search.report.record import plain_choices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_core import Choice, Plan
    from drivetrain_search.final import Comparison
    from drivetrain_search.report.record import TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData:
    """What a search did.

    Args:
        trials: Every trial, the baseline first.
        chosen: The plan that was chosen.
        seconds: What the search took in all.
        stopped: Why it ended.
        plan: The plan that was made of it, with the reason for each slot.
        comparison: The final, won or lost; None when there was none.
        forecasts: What was expected before a trial ran, by the trial's name: a
            dataclass of amounts, of which `step_time_s` and `peak_bytes` are set beside
            what was measured.
    """

    trials: tuple[TrialRecord, ...]
    chosen: tuple[Choice, ...]
    seconds: float
    stopped: str
    plan: Plan | None = None
    comparison: Comparison | None = None
    forecasts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def baseline(self) -> TrialRecord:
        """The trial of the user's own program."""
        return self.trials[0]

    def speedup(self, trial: TrialRecord) -> float:
        """Returns how many times as fast as the baseline a measured trial was.

        Args:
            trial: One with a measurement.
        """
        assert trial.measurement is not None
        base = self.baseline.measurement
        if base is None:
            return 1.0
        return base.quiet_step_time_s / trial.measurement.quiet_step_time_s

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data."""
        data: dict[str, Any] = {
            "trials": [trial.to_dict() for trial in self.trials],
            "chosen": plain_choices(self.chosen),
            "seconds": round(self.seconds, 1),
            "stopped": self.stopped,
        }
        if self.comparison is not None:
            data["comparison"] = {
                "baseline": self.comparison.baseline.to_dict(),
                "plan": self.comparison.plan.to_dict(),
                "speedup": self.comparison.speedup,
                "ci95": [self.comparison.low, self.comparison.high],
            }
        return data
