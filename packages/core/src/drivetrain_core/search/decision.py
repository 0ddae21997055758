"""The end of a search: finalists in turns, and a thorough check of the winner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from drivetrain_core._errors import Code
from drivetrain_core._optimization import Ok, Reject
from drivetrain_core._plan import describe
from drivetrain_core.search.final import (
    Comparison,
    compare,
    fit_together,
    run_in_turns,
)
from drivetrain_core.search.numerics.verify import verify
from drivetrain_core.search.process.trial import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core.search.descent import Choices
    from drivetrain_core.search.objective import Objective
    from drivetrain_core.search.report.record import TrialRecord
    from drivetrain_core.search.trials import Trials

__all__ = ["Decision"]

_TURNS = 4
_STEPS = 6
_SECONDS = 1.0
# Plans within this part of the best one's trial meet it in the final.
_FINALISTS = 3
_NEAR = 1.04
# What is compiled or imported anew may take longer than the baseline's set-up did.
_SETUP_SLACK = 1.25
_VERIFY_SETUPS = 2
_VERIFY_STEPS = 40
_ACCEPT_LOW = 1.0
_ACCEPT_MEDIAN = 1.02


class Decision:
    """Decides between the baseline and the best trials.

    Args:
        trials: The trials; those that are refused here are marked.
        objective: What is maximised.
        memory_bytes: The memory of a device.
    """

    def __init__(self, trials: Trials, objective: Objective, memory_bytes: int) -> None:
        """Keeps the parts."""
        self._trials = trials
        self._objective = objective
        self._memory_bytes = memory_bytes
        self._structures: dict[Choices, Ok | Reject] = {}

    def seconds(self, finalists: int = 1) -> float:
        """Returns what the final of so many, and the check, will take."""
        base = self._trials.records[0].measurement
        best = self._trials.best_first()
        if base is None or not best:
            return 0.0
        slower = max(base.step_time_s, best[0].measurement.step_time_s)  # type: ignore[union-attr]
        turn = max(_STEPS * slower, _SECONDS)
        # What had to be compiled lies in the cache by then.
        setup = _SETUP_SLACK * base.setup_s
        verify = _VERIFY_SETUPS * setup + _VERIFY_STEPS * slower
        return verify + (1 + finalists) * (setup + _TURNS * turn)

    def decide(
        self, base: TrialRecord, stopped: str
    ) -> tuple[Choices, Comparison | None, str]:
        """Returns what is chosen, its final, and why.

        Args:
            base: The baseline's trial.
            stopped: Why there were no more trials.
        """
        because = f"no plan was better in its trial; {stopped}"
        comparison: Comparison | None = None
        while finalists := self._finalists(base):
            try:
                found = self._final(base, finalists)
            except Failure as failure:
                because = f"the final failed ({failure.code.value}): {failure.because}"
                return base.choices, None, because
            for best, comparison in found:
                text = (
                    f"{comparison.speedup:.2f}x in the final, 95% interval "
                    f"{comparison.low:.2f} to {comparison.high:.2f}"
                )
                if comparison.low < _ACCEPT_LOW or comparison.speedup < _ACCEPT_MEDIAN:
                    because = f"{describe(best.choices)} was only {text}"
                    return base.choices, comparison, because
                try:
                    answer = self._verified(best)
                except Failure as failure:
                    because = f"the last check was broken off: {failure.because}"
                    return base.choices, comparison, because
                if not isinstance(answer, Reject):
                    return best.choices, comparison, text
                because = f"no other plan was better than {describe(base.choices)}"
                self._trials.refuse(best.choices, answer)
        return base.choices, comparison, because

    def _finalists(self, base: TrialRecord) -> list[TrialRecord]:
        """Returns the trials that may be the best, as far as one trial can tell."""
        left = self._trials.deadline - time.monotonic()
        most = _FINALISTS
        while most > 1 and self.seconds(most) > left:
            most -= 1
        better: list[TrialRecord] = []
        for record in self._trials.best_first():
            if record is base or len(better) == most:
                break
            better.append(record)
        scores = [self._trials.score(record) or 0.0 for record in better]
        return [
            r for r, s in zip(better, scores, strict=True) if s * _NEAR >= scores[0]
        ]

    def _final(
        self, base: TrialRecord, finalists: Sequence[TrialRecord]
    ) -> list[tuple[TrialRecord, Comparison]]:
        """Returns the finalists beside the baseline, the best first.

        Raises:
            Failure: The baseline and the best finalist alone do not run in turns.
        """
        self._trials.let_go()
        best, records = finalists[0], [base, *finalists]
        self._trials.announce("final", best.choices)
        try:
            measured = run_in_turns(
                self._trials.runner(best.choices),
                [record.choices for record in records],
                turns=_TURNS,
                min_steps=_STEPS,
                min_seconds=_SECONDS,
                deadline=self._trials.deadline,
                together=fit_together(
                    [r.measurement for r in records if r.measurement],
                    self._memory_bytes,
                ),
            )
        except Failure as failure:
            if len(finalists) == 1 or failure.code is Code.BUDGET:
                raise
            return self._final(base, finalists[:1])
        objective = self._objective
        found = [
            (record, compare(measured[0], mine, objective))
            for record, mine in zip(finalists, measured[1:], strict=True)
        ]
        return sorted(found, key=lambda pair: -pair[1].speedup)

    def _verified(self, best: TrialRecord) -> Ok | Reject:
        """Returns what the thorough check says.

        Raises:
            Failure: Its time was over.
        """
        reference = self._trials.reference
        assert reference is not None
        self._trials.announce("check", best.choices)
        return verify(
            self._trials.runner(best.choices),
            best.choices,
            reference,
            deadline=self._trials.deadline,
            structures=self._structures,
        )
