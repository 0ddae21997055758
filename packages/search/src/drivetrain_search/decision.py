"""Choice of the plan at the end of a search: `verify`, then `final`, then `last_check`."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from typing import TYPE_CHECKING

from drivetrain_core import Code, Ok, Reject
from drivetrain_core.extending import describe
from drivetrain_search.final import (
    Comparison,
    compare,
    compare_sets,
    fit_together,
    run_in_turns,
)
from drivetrain_search.last_check import LastCheck
from drivetrain_search.posterior import gain_over, posteriors_of, process_noise, revised
from drivetrain_search.process.trial import Failure
from drivetrain_search.race import surely_reached, surely_within
from drivetrain_search.score import score_of
from drivetrain_search.stopping import step_noise
from drivetrain_search.time_budget import (
    LEAST_STEPS,
    MIN_SECONDS,
    TURNS,
    final_steps,
    set_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_core import Measurement
    from drivetrain_core.objective import Objective
    from drivetrain_search.descent import Choices
    from drivetrain_search.posterior import Posteriors
    from drivetrain_search.report.record import TrialRecord
    from drivetrain_search.surrogate import Prediction
    from drivetrain_search.trials import Trials

    _Pairs = Sequence[tuple[Measurement, Measurement]]

logger = logging.getLogger(__name__)

# Two processes of one plan differ as long as they live: the final runs in sets of them, at
# least two, and more while a second plan may still turn out to be the faster, or while the
# best may still turn out to be no faster than the program as written.
_SETS, _RACING_SETS, _MOST_SETS = 2, 3, 6
# Plans within this part of what is believed of the best one meet it in the final.
_FINALISTS = 4
_NEAR = 1.06
# A finalist that is expected to beat the best by less than this part is not in the next.
_WORTH = 0.003
_ACCEPT_LOW = 1.0
_ACCEPT_MEDIAN = 1.02
# A final of few steps may leave it open; this gain in it and the steps of the trials, which
# alone would favour the luckiest of them, show it together.
_ACCEPT_WITH_TRIALS = 1.05
# An interval whose ends are further apart says nothing, wherever it lies.
_WIDEST = 4.0
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
        self._check = LastCheck(trials)

    def seconds(
        self, finalists: int = 1, *, leader: TrialRecord | None = None
    ) -> float:
        """Returns what the final of so many, and the check, will take.

        Args:
            finalists: How many plans there are beside the baseline.
            leader: The best plan; by default that of the trials so far.
        """
        base = self._trials.records[0].measurement
        best = leader or next(iter(self._trials.best_first()), None)
        if base is None or best is None:
            return 0.0
        measured = best.measurement
        assert measured is not None
        # Few finalists are left after the first set.
        steps = self._steps([base, measured])
        first = set_seconds(base, measured, finalists, steps)
        later = set_seconds(base, measured, min(finalists, 2), steps)
        least = first + self._check.seconds(base, best)
        shares = self._trials.shares
        if later > shares.set_s:
            # Where steps are long, one more plan is worth more than one more set.
            return least
        return max(least, min(least + (_SETS - 1) * later, shares.end_s))

    def seconds_if_best(self, choices: Choices, setup_s: float) -> float:
        """Returns what the end will take, should a plan turn out to be the best.

        Args:
            choices: The plan, whose trial is still to come.
            setup_s: What its set-up is expected to take.
        """
        best = self._trials.best_first()
        if not best:
            return 0.0
        known = best[0].measurement
        assert known is not None
        expected = dataclasses.replace(known, setup_s=setup_s)
        leader = dataclasses.replace(best[0], choices=choices, measurement=expected)
        return max(self.seconds(), self.seconds(leader=leader))

    def insure_leader(self) -> bool:
        """Checks the best trial now, if that tells how long later checks take.

        The check of a plan whose structure was never compiled is what takes longest at
        the end. It is due anyway; after it less needs to be kept.

        Returns:
            Whether anything was checked.
        """
        best = self._trials.best_first()
        if not best or not self._check.compiles_anew(best[0].choices):
            return False
        beside = [self._trials.records[0].measurement, *(2 * [best[0].measurement])]
        if not fit_together([m for m in beside if m], self._memory_bytes):
            # The baseline stays beside trials; without low precision the plan is larger.
            self._trials.let_go()
        try:
            answer = self._check.verdict(best[0])
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
            posteriors = self._posteriors()
            better = self._better(base, posteriors)
            if not better:
                break
            finalists = self._finalists(better, posteriors)
            try:
                found = self._final(base, finalists, better, posteriors)
            except Failure as failure:
                because = f"the final failed ({failure.code.value}): {failure.because}"
                if failure.code is Code.BUDGET:
                    return self._by_trials(base, better, because)
                return base.choices, None, because
            for best, final, pairs in found:
                comparison = self._promised(base, best, final)
                text = (
                    f"{final.speedup:.2f}x in the final, 95% interval "
                    f"{final.low:.2f} to {final.high:.2f}"
                    f"{self._beside_its_trial(base, best, final)}"
                )
                if comparison is not final:
                    text = (
                        f"{comparison.speedup:.2f}x in its trial; the final saw more, "
                        "on a machine that was not quiet"
                    )
                if not self._is_shown(base, best, comparison, pairs):
                    because = f"{describe(best.choices)} was only {text}"
                    return base.choices, comparison, because
                try:
                    answer = self._check.verdict(best)
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

    def _by_trials(
        self, base: TrialRecord, better: Sequence[TrialRecord], otherwise: str
    ) -> tuple[Choices, Comparison | None, str]:
        """Chooses where there was no time for a final: by a gain that is beyond doubt.

        Args:
            base: The baseline's trial.
            better: Those that are believed to beat it, the best first.
            otherwise: Why the baseline stays if there is none.
        """
        assert base.measurement is not None
        most = surely_within(self._objective, base.measurement)
        for record in better:
            if not self._check.passed(record.choices):
                continue
            assert record.measurement is not None
            least = surely_reached(self._objective, record.measurement)
            if least < _ACCEPT_MEDIAN * most:
                continue
            found = compare(base.measurement, record.measurement, self._objective)
            text = f"{found.speedup:.2f}x in its trial; there was no time for a final"
            return record.choices, found, text
        return base.choices, None, otherwise

    def _promised(
        self, base: TrialRecord, best: TrialRecord, final: Comparison
    ) -> Comparison:
        """Returns the final, or the trials where those saw a far smaller gain."""
        assert base.measurement is not None
        assert best.measurement is not None
        mine, its = self._trials.score(base), self._trials.score(best)
        if not mine or not its or final.speedup <= _MOST_APART * its / mine:
            return final
        # As the trials are ranked and shown: by their quiet steps.
        trials = compare(base.measurement, best.measurement, self._objective)
        return dataclasses.replace(
            trials,
            speedup=its / mine,
            low=min(trials.low, its / mine),
            high=max(trials.high, its / mine),
        )

    def _beside_its_trial(
        self, base: TrialRecord, best: TrialRecord, comparison: Comparison
    ) -> str:
        mine, its = self._trials.score(base), self._trials.score(best)
        if not mine or not its:
            return ""
        return _unless_near(comparison.speedup, its / mine)

    def _finalists(
        self, better: Sequence[TrialRecord], posteriors: Posteriors
    ) -> list[TrialRecord]:
        """Returns the trials that may be the best, as far as one trial can tell."""
        left = self._trials.deadline - time.monotonic()
        # One that there is time for is worth more than the best without a final.
        timely = [r for r in better if self._least_seconds(r) <= left] or better
        most = _FINALISTS
        while most > 1 and self.seconds(most, leader=timely[0]) > left:
            most -= 1
        best = posteriors[timely[0].choices].mean
        return [
            record
            for record in timely[:most]
            if best - posteriors[record.choices].mean <= math.log(_NEAR)
        ]

    def _least_seconds(self, record: TrialRecord) -> float:
        """Returns what the shortest final of a plan takes, and its check."""
        base = self._trials.records[0].measurement
        assert base is not None
        assert record.measurement is not None
        final_s = set_seconds(base, record.measurement, 1, LEAST_STEPS)
        return final_s + self._check.seconds(base, record)

    def _better(self, base: TrialRecord, posteriors: Posteriors) -> list[TrialRecord]:
        """Returns the trials that are believed to beat the baseline, the best first."""
        records = self._trials.best_first()
        records.sort(key=lambda record: -posteriors[record.choices].mean)
        return records[: records.index(base)] if base in records else records

    def _posteriors(self) -> Posteriors:
        """Returns what all trials say of each plan that can be used."""
        scored = [(r.choices, self._trials.score(r)) for r in self._trials.best_first()]
        return posteriors_of({plan: s for plan, s in scored if s is not None})

    def _final(
        self,
        base: TrialRecord,
        finalists: Sequence[TrialRecord],
        better: Sequence[TrialRecord],
        posteriors: Posteriors,
    ) -> list[tuple[TrialRecord, Comparison, _Pairs]]:
        """Returns those that were in the final beside the baseline, the best first.

        With each comes how it did, and what it and the baseline measured in each set.

        Args:
            base: The baseline's trial.
            finalists: Those that begin.
            better: Those that may join when finalists turn out to have been lucky.
            posteriors: What the trials say of all of them.

        Raises:
            Failure: The baseline and the best finalist alone do not run in turns.
        """
        self._trials.let_go()
        sets: list[dict[Choices, Measurement]] = []
        racing, took_s = list(finalists), 0.0
        try:
            for number in range(_MOST_SETS):
                enough = _RACING_SETS if len(racing) > 1 else _SETS
                decided = not racing or (
                    number >= enough and self._is_clear(base, racing[0], sets)
                )
                if decided or (number and self._too_late(base, racing, took_s)):
                    break
                begin = time.monotonic()
                sets.append(self._set([base, *racing]))
                took_s = (time.monotonic() - begin) / (1 + len(racing))
                racing = self._racing(base, better, sets, posteriors)
                if number == 0:
                    self._insure(racing, sets[0])
                    racing = self._racing(base, better, sets, posteriors)
        except Failure as failure:
            if not sets:
                if len(finalists) == 1 or failure.code is Code.BUDGET:
                    raise
                return self._final(base, finalists[:1], finalists[:1], posteriors)
            logger.info("the final goes without its last set: %s", failure.because)
        found = []
        believed = self._believed(base, better, sets, posteriors)
        for record, prediction in zip(better, believed, strict=True):
            if pairs := _pairs(base, record, sets):
                comparison = compare_sets(pairs, self._objective)
                found.append((prediction.mean, record, comparison, pairs))
        found.sort(key=lambda one: -one[0])
        return [(record, comparison, pairs) for _, record, comparison, pairs in found]

    def _is_clear(
        self,
        base: TrialRecord,
        best: TrialRecord,
        sets: Sequence[dict[Choices, Measurement]],
    ) -> bool:
        """Returns whether it shows that a plan is faster than the baseline, or is not."""
        pairs = _pairs(base, best, sets)
        if not pairs:
            return False
        found = compare_sets(pairs, self._objective)
        return found.low >= _ACCEPT_LOW or found.speedup < _ACCEPT_MEDIAN

    def _is_shown(
        self, base: TrialRecord, best: TrialRecord, found: Comparison, pairs: _Pairs
    ) -> bool:
        """Returns whether a plan is faster than the baseline beyond doubt."""
        if found.high > _WIDEST * found.low:
            return False
        if found.low >= _ACCEPT_LOW:
            return found.speedup >= _ACCEPT_MEDIAN
        if found.speedup < _ACCEPT_WITH_TRIALS:
            return False
        assert base.measurement is not None
        assert best.measurement is not None
        trials = (base.measurement, best.measurement)
        together = compare_sets([*pairs, trials], self._objective)
        return together.low >= _ACCEPT_LOW

    def _set(self, records: Sequence[TrialRecord]) -> dict[Choices, Measurement]:
        """Returns what plans do in turns, each in processes of its own."""
        best = records[1].choices
        self._trials.announce("final", best)
        expected = [r.measurement for r in records if r.measurement]
        measured = run_in_turns(
            self._trials.runner(best),
            [record.choices for record in records],
            turns=TURNS,
            min_steps=self._steps_in_time(records),
            min_seconds=MIN_SECONDS,
            deadline=self._trials.deadline,
            together=fit_together(expected, self._memory_bytes),
        )
        plans = [record.choices for record in records]
        return dict(zip(plans, measured, strict=True))

    def _steps(self, expected: Sequence[Measurement]) -> int:
        """Returns the steps of a turn at least, of a baseline and plans beside it."""
        base_s, best_s = (one.quiet_step_time_s for one in expected[:2])
        return final_steps(
            max(one.step_time_s for one in expected),
            max(step_noise(one.step_times_s) for one in expected[:2]),
            max(base_s / best_s - 1.0, 0.0),
            self._trials.shares.seconds,
        )

    def _steps_in_time(self, records: Sequence[TrialRecord]) -> int:
        """Returns the steps of a turn that leave time for the check, if that is due."""
        base, *others = (r.measurement for r in records if r.measurement is not None)
        steps = self._steps([base, *others])
        left = self._trials.deadline - time.monotonic()
        left -= self._check.seconds(base, records[1])
        while steps > LEAST_STEPS:
            if set_seconds(base, others[0], len(others), steps) <= left:
                break
            steps -= 1
        return steps

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
        if not self._check.has_passed:
            needed += self._check.seconds(base.measurement, racing[0])
        return time.monotonic() + needed > self._trials.deadline

    def _racing(
        self,
        base: TrialRecord,
        better: Sequence[TrialRecord],
        sets: Sequence[dict[Choices, Measurement]],
        posteriors: Posteriors,
    ) -> list[TrialRecord]:
        """Returns those that another set may still show to be the fastest."""
        standing = [r for r in better if not self._check.refused(r.choices)]
        if not standing:
            return []
        return _in_the_race(standing, self._believed(base, standing, sets, posteriors))

    def _insure(
        self, racing: Sequence[TrialRecord], ran: Mapping[Choices, Measurement]
    ) -> None:
        """Checks the best that ran, so that a search that runs late has a plan."""
        for record in racing:
            if record.choices in ran and isinstance(self._check.verdict(record), Ok):
                return

    def _believed(
        self,
        base: TrialRecord,
        finalists: Sequence[TrialRecord],
        sets: Sequence[dict[Choices, Measurement]],
        posteriors: Posteriors,
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
            revised(posteriors[plan], [s[plan] for s in found if plan in s], noise)
            for plan in tried
        ]


def _pairs(
    base: TrialRecord, record: TrialRecord, sets: Sequence[dict[Choices, Measurement]]
) -> _Pairs:
    """Returns what the baseline and a plan measured in each set that both ran in."""
    mine = [one for one in sets if record.choices in one]
    return [(one[base.choices], one[record.choices]) for one in mine]


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
