"""The end of a search: finalists in turns, and a thorough check of the winner."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from drivetrain_core._errors import Code
from drivetrain_core._optimization import Ok, Reject
from drivetrain_core._plan import describe
from drivetrain_core.search.belief import (
    beliefs_of,
    gain_over,
    process_noise,
    revised,
)
from drivetrain_core.search.final import (
    Comparison,
    compare,
    fit_together,
    merge,
    run_in_turns,
)
from drivetrain_core.search.numerics.verify import (
    passes_of_check,
    structure_of,
    verify,
)
from drivetrain_core.search.objective import score_of
from drivetrain_core.search.process.trial import Failure
from drivetrain_core.search.reserve import (
    MIN_SECONDS,
    TURNS,
    check_seconds,
    final_steps,
    set_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_core._measurement import Measurement
    from drivetrain_core._optimization import Choice
    from drivetrain_core.search.belief import Beliefs
    from drivetrain_core.search.descent import Choices
    from drivetrain_core.search.objective import Objective
    from drivetrain_core.search.report.record import TrialRecord
    from drivetrain_core.search.surrogate import Prediction
    from drivetrain_core.search.trials import Trials

__all__ = ["Decision"]

logger = logging.getLogger(__name__)

# Two processes of one plan differ as long as they live: the final runs in sets of them, at
# least two, and more while a second plan may still turn out to be the faster.
_SETS, _MOST_SETS = 2, 3
# Plans within this part of what is believed of the best one meet it in the final.
_FINALISTS = 4
_NEAR = 1.06
# A finalist that is expected to beat the best by less than this part is not in the next.
_WORTH = 0.003
_ACCEPT_LOW = 1.0
_ACCEPT_MEDIAN = 1.02
# A trial and a final that are further apart met another machine.
_MOST_APART = 1.5


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
        self._verdicts: dict[Choices, Ok | Reject] = {}

    def seconds(self, finalists: int = 1) -> float:
        """Returns what the final of so many, and the check, will take."""
        base = self._trials.records[0].measurement
        best = self._trials.best_first()
        if base is None or not best:
            return 0.0
        measured = best[0].measurement
        assert measured is not None
        # Few finalists are left after the first set.
        first = set_seconds(base, measured, finalists)
        later = set_seconds(base, measured, min(finalists, 2))
        least = first + self._check_seconds(base, best[0])
        # Where steps are long, further sets get what trials leave.
        return max(least, min(least + (_SETS - 1) * later, self._trials.shares.end_s))

    def insure_leader(self) -> bool:
        """Checks the best trial now, if that tells how long later checks take.

        The check of a plan whose structure was never compiled is what takes longest at
        the end. It is due anyway; after it less needs to be kept.

        Returns:
            Whether anything was checked.
        """
        best = self._trials.best_first()
        if not best or best[0].choices in self._verdicts:
            return False
        structure = self._unseen_structure(best[0].choices)
        if structure is None or not _what_compiles(structure):
            return False
        beside = [self._trials.records[0].measurement, *(2 * [best[0].measurement])]
        if not fit_together([m for m in beside if m], self._memory_bytes):
            # The baseline stays beside trials; without low precision the plan is larger.
            self._trials.let_go()
        try:
            answer = self._verified(best[0])
        except Failure:
            # The time is over: the final's own check of the next best may be shorter.
            return False
        if isinstance(answer, Reject):
            self._trials.refuse(best[0].choices, answer)
        return True

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
        broken_off = ""
        while self._trials.best_first() and not broken_off:
            beliefs = self._beliefs()
            better = self._better(base, beliefs)
            if not better:
                break
            finalists = self._finalists(better, beliefs)
            try:
                found = self._final(base, finalists, better, beliefs)
            except Failure as failure:
                because = f"the final failed ({failure.code.value}): {failure.because}"
                return base.choices, None, because
            for best, comparison in found:
                text = (
                    f"{comparison.speedup:.2f}x in the final, 95% interval "
                    f"{comparison.low:.2f} to {comparison.high:.2f}"
                    f"{self._beside_its_trial(base, best, comparison)}"
                )
                if comparison.low < _ACCEPT_LOW or comparison.speedup < _ACCEPT_MEDIAN:
                    because = f"{describe(best.choices)} was only {text}"
                    return base.choices, comparison, because
                try:
                    answer = self._verified(best)
                except Failure as failure:
                    # The next best may have stood it already.
                    because = broken_off = (
                        f"the last check was broken off: {failure.because}"
                    )
                    continue
                if not isinstance(answer, Reject):
                    return best.choices, comparison, text
                because = f"no other plan was better than {describe(base.choices)}"
                self._trials.refuse(best.choices, answer)
        return base.choices, comparison, because

    def _beside_its_trial(
        self, base: TrialRecord, best: TrialRecord, comparison: Comparison
    ) -> str:
        mine, its = self._trials.score(base), self._trials.score(best)
        if not mine or not its:
            return ""
        return _unless_near(comparison.speedup, its / mine)

    def _finalists(
        self, better: Sequence[TrialRecord], beliefs: Beliefs
    ) -> list[TrialRecord]:
        """Returns the trials that may be the best, as far as one trial can tell."""
        left = self._trials.deadline - time.monotonic()
        most = _FINALISTS
        while most > 1 and self.seconds(most) > left:
            most -= 1
        best = beliefs[better[0].choices].mean
        return [
            record
            for record in better[:most]
            if best - beliefs[record.choices].mean <= math.log(_NEAR)
        ]

    def _better(self, base: TrialRecord, beliefs: Beliefs) -> list[TrialRecord]:
        """Returns the trials that are believed to beat the baseline, the best first."""
        records = self._trials.best_first()
        records.sort(key=lambda record: -beliefs[record.choices].mean)
        return records[: records.index(base)] if base in records else records

    def _beliefs(self) -> Beliefs:
        """Returns what all trials say of each plan that can be used."""
        scored = [(r.choices, self._trials.score(r)) for r in self._trials.best_first()]
        return beliefs_of({plan: s for plan, s in scored if s is not None})

    def _final(
        self,
        base: TrialRecord,
        finalists: Sequence[TrialRecord],
        better: Sequence[TrialRecord],
        beliefs: Beliefs,
    ) -> list[tuple[TrialRecord, Comparison]]:
        """Returns those that were in the final beside the baseline, the best first.

        Args:
            base: The baseline's trial.
            finalists: Those that begin.
            better: Those that may join when finalists turn out to have been lucky.
            beliefs: What the trials say of all of them.

        Raises:
            Failure: The baseline and the best finalist alone do not run in turns.
        """
        self._trials.let_go()
        sets: list[dict[Choices, Measurement]] = []
        racing, took_s = list(finalists), 0.0
        try:
            for number in range(_MOST_SETS):
                decided = not racing or (number >= _SETS and len(racing) == 1)
                if decided or (number and self._too_late(base, racing, took_s)):
                    break
                begin = time.monotonic()
                sets.append(self._set([base, *racing]))
                took_s = (time.monotonic() - begin) / (1 + len(racing))
                racing = self._racing(base, better, sets, beliefs)
                if number == 0:
                    self._insure(racing, sets[0])
                    racing = self._racing(base, better, sets, beliefs)
        except Failure as failure:
            if not sets:
                if len(finalists) == 1 or failure.code is Code.BUDGET:
                    raise
                return self._final(base, finalists[:1], finalists[:1], beliefs)
            logger.info("the final goes without its last set: %s", failure.because)
        found = []
        believed = self._believed(base, better, sets, beliefs)
        for record, prediction in zip(better, believed, strict=True):
            mine = [one for one in sets if record.choices in one]
            if not mine:
                continue
            comparison = compare(
                merge([one[base.choices] for one in mine]),
                merge([one[record.choices] for one in mine]),
                self._objective,
            )
            found.append((record, comparison, prediction.mean))
        found.sort(key=lambda one: -one[2])
        return [(record, comparison) for record, comparison, _ in found]

    def _set(self, records: Sequence[TrialRecord]) -> dict[Choices, Measurement]:
        """Returns what plans do in turns, each in processes of its own."""
        best = records[1].choices
        self._trials.announce("final", best)
        expected = [r.measurement for r in records if r.measurement]
        measured = run_in_turns(
            self._trials.runner(best),
            [record.choices for record in records],
            turns=TURNS,
            min_steps=final_steps(max(m.step_time_s for m in expected)),
            min_seconds=MIN_SECONDS,
            deadline=self._trials.deadline,
            together=fit_together(expected, self._memory_bytes),
        )
        plans = [record.choices for record in records]
        return dict(zip(plans, measured, strict=True))

    def _too_late(
        self, base: TrialRecord, racing: Sequence[TrialRecord], took_s: float
    ) -> bool:
        """Returns whether there is no time for another set, and the check if it is due.

        Args:
            base: The baseline's trial.
            racing: The finalists that are left, the best first.
            took_s: What each plan took of the last set.
        """
        assert base.measurement is not None
        needed = (1 + len(racing)) * took_s
        if not any(isinstance(v, Ok) for v in self._verdicts.values()):
            needed += self._check_seconds(base.measurement, racing[0])
        return time.monotonic() + needed > self._trials.deadline

    def _racing(
        self,
        base: TrialRecord,
        better: Sequence[TrialRecord],
        sets: Sequence[dict[Choices, Measurement]],
        beliefs: Beliefs,
    ) -> list[TrialRecord]:
        """Returns those that another set may still show to be the fastest."""
        refused = {p for p, v in self._verdicts.items() if isinstance(v, Reject)}
        standing = [record for record in better if record.choices not in refused]
        if not standing:
            return []
        return _in_the_race(standing, self._believed(base, standing, sets, beliefs))

    def _insure(
        self, racing: Sequence[TrialRecord], ran: Mapping[Choices, Measurement]
    ) -> None:
        """Checks the best that ran, so that a search that runs late has a plan."""
        for record in racing:
            if record.choices in ran and isinstance(self._verified(record), Ok):
                return

    def _believed(
        self,
        base: TrialRecord,
        finalists: Sequence[TrialRecord],
        sets: Sequence[dict[Choices, Measurement]],
        beliefs: Beliefs,
    ) -> list[Prediction]:
        """Returns what is believed of finalists, as log speeds, after some sets."""
        assert base.measurement is not None
        # The baseline's trial brings the gains of the final into the trials' unit.
        unit = score_of(
            self._objective, base.measurement, base.measurement.quiet_step_time_s
        )

        def speeds_in(one: dict[Choices, Measurement]) -> dict[Choices, float]:
            written = one[base.choices]
            return {
                record.choices: unit
                * compare(written, one[record.choices], self._objective).speedup
                for record in finalists
                if record.choices in one
            }

        found = [speeds_in(one) for one in sets]
        tried = {r.choices: self._trials.score(r) or unit for r in finalists}
        noise = process_noise(
            [(tried[plan], speed) for plan, speed in one.items()] for one in found
        )
        return [
            revised(beliefs[plan], [s[plan] for s in found if plan in s], noise)
            for plan in tried
        ]

    def _check_seconds(self, base: Measurement, best: TrialRecord) -> float:
        """Returns what the check of a plan will take."""
        assert best.measurement is not None
        if isinstance(self._verdicts.get(best.choices), Ok):
            return 0.0
        structure = self._unseen_structure(best.choices)
        reference = self._trials.reference
        assert reference is not None
        passes = passes_of_check(reference, structure_is_due=structure is not None)
        if structure is None:
            return check_seconds(base, best.measurement, None, passes)
        # The trial of the plan may have found its code compiled, by one much like it;
        # without low precision it is other code.
        compiled = _what_compiles(structure)
        setups = [
            record.measurement.setup_s
            for record in self._trials.records
            if compiled
            and record.measurement is not None
            and compiled <= set(record.choices)
        ]
        longest = max([base.setup_s, best.measurement.setup_s, *setups])
        return check_seconds(base, best.measurement, longest, passes)

    def _unseen_structure(self, choices: Choices) -> Choices | None:
        """Returns a plan without its low precision, if that is to be looked at yet."""
        structure = structure_of(choices, self._trials.runner(choices).world_size)
        if structure in ((), choices) or structure in self._structures:
            return None
        return structure

    def _verified(self, best: TrialRecord) -> Ok | Reject:
        """Returns what the thorough check says, or has said.

        Raises:
            Failure: Its time was over.
        """
        known = self._verdicts.get(best.choices)
        if known is not None:
            return known
        reference = self._trials.reference
        assert reference is not None
        self._trials.announce("check", best.choices)
        verdict = self._verdicts[best.choices] = verify(
            self._trials.runner(best.choices),
            best.choices,
            reference,
            deadline=self._trials.deadline,
            structures=self._structures,
        )
        return verdict


def _unless_near(final: float, trial: float) -> str:
    """Returns what to add where a final and a trial saw very different speed-ups.

    Example:
        >>> _unless_near(1.24, 2.52)
        ' (its trial: 2.52x; the machine was not quiet)'
        >>> _unless_near(1.24, 1.43)
        ''
    """
    if max(final, trial) <= _MOST_APART * min(final, trial):
        return ""
    return f" (its trial: {trial:.2f}x; the machine was not quiet)"


def _what_compiles(choices: Choices) -> set[Choice]:
    return {choice for choice in choices if choice.name == "compile"}


def _in_the_race(
    records: Sequence[TrialRecord], believed: Sequence[Prediction]
) -> list[TrialRecord]:
    """Returns the plans that another set may still show to be the fastest."""
    order = sorted(range(len(records)), key=lambda index: -believed[index].mean)
    best = believed[order[0]]
    return [
        records[index]
        for index in order[:_FINALISTS]
        if index == order[0] or gain_over(best, believed[index]) > _WORTH
    ]
