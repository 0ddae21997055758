"""What the trial of a plan is expected to take, from the trials that ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import Slot
from drivetrain_core.extending import find
from drivetrain_core.numerics.observation import FIRST_STEPS
from drivetrain_search.phase_shares import fits_beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_search.descent import Choices
    from drivetrain_search.phase_shares import PhaseShares
    from drivetrain_search.report.record import TrialRecord

# What compiles for the first time takes seconds, whatever is compiled, and more of them
# for a program that takes long to be made.
_COMPILE_S, _COMPILE_FACTOR = 12.0, 4.0
# Beside the first steps: the pass that shows whether it obeys.
_OTHER_PASSES = 1
# Usual turns, and what the baseline takes between them.
_TURNS, _TURN_S, _BESIDE = 3, 0.35, 1.5
_FIRST_TRIAL_S = 60.0


class TrialCost:
    """Expects the seconds of a trial.

    Args:
        records: The trials so far, that of the program as written first.
        shares: The parts of the budget.
    """

    def __init__(self, records: Sequence[TrialRecord], shares: PhaseShares) -> None:
        """Keeps both."""
        self._records = records
        self._shares = shares

    def seconds(self, choices: Choices) -> float:
        """Returns the seconds of a plan's trial, from its start to its end.

        Its steps are expected to take as long as the baseline's: what is slower is
        dropped after a few of them.
        """
        base = self._records[0].measurement if self._records else None
        if base is None:
            return _FIRST_TRIAL_S
        step_s = base.step_time_s
        passes = FIRST_STEPS + _OTHER_PASSES
        most_s = max(self._shares.turns_s, step_s)
        turns_s = min(_TURNS * max(step_s, _TURN_S), most_s)
        if fits_beside(step_s, self._shares.seconds):
            turns_s *= _BESIDE
        return self.setup_seconds(choices) + passes * step_s + turns_s

    def setup_seconds(self, choices: Choices) -> float:
        """Returns what a plan takes until it is ready, but for its passes."""
        base = self._records[0].measurement if self._records else None
        if base is None:
            return _FIRST_TRIAL_S
        compiled = {c for c in choices if find(c.name).slot is Slot.COMPILE}
        if not compiled:
            return base.setup_s
        seen = [
            record.measurement.setup_s
            for record in self._records
            if record.measurement is not None
            and record.measurement.setup_s
            and compiled <= set(record.choices)
        ]
        if seen:
            # Other code, such as that of half a batch, is not found in the cache.
            return max(base.setup_s, *seen)
        return base.setup_s + _COMPILE_S + _COMPILE_FACTOR * base.setup_s
