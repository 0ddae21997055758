"""Runs the trials of one search, and keeps what came of each."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any, Self

from drivetrain_core._compose import numerics_of
from drivetrain_core._errors import Code
from drivetrain_core._optimization import Reject
from drivetrain_core.search.anchor import Anchor
from drivetrain_core.search.final import fit_together
from drivetrain_core.search.numerics.guard import Observation, compare, differences
from drivetrain_core.search.process.trial import Failure, TrialRunner
from drivetrain_core.search.race import quiet_score, race
from drivetrain_core.search.report.record import TrialRecord

if TYPE_CHECKING:
    from drivetrain_core.search.cache.cache import TrialCache
    from drivetrain_core.search.descent import Choices
    from drivetrain_core.search.options import SearchOptions
    from drivetrain_core.search.progress import Progress

__all__ = ["Trials"]

_DEFAULT_TRIAL_S = 60.0
_FIRST_TRIAL_S = 300.0
_TRIAL_FACTOR = 5.0


class Trials:
    """The trials of one search, in the order in which they ran.

    Args:
        runner: Starts the processes of a trial.
        options: The budget and the objective.
        progress: Told about every trial.
        cache: Earlier trials of the same program here, if any.
        started: When the search began, in `time.monotonic` seconds.
        memory_bytes: The memory of a device.

    Attributes:
        records: What came of each; the first is the one that others are compared with.
        reference: How the program behaved that plans are held to; None before it ran.
        deadline: When the search must end, in `time.monotonic` seconds.
        reserved_s: What trials must leave of the time until then.
    """

    def __init__(
        self,
        runner: TrialRunner,
        options: SearchOptions,
        progress: Progress,
        cache: TrialCache | None,
        started: float,
        memory_bytes: int,
    ) -> None:
        """Begins without trials."""
        self._memory_bytes = memory_bytes
        self.records: list[TrialRecord] = []
        self.reference: Observation | None = None
        self.deadline = started + options.budget.seconds
        self.reserved_s = 0.0
        self._runner = runner
        self._options = options
        self._progress = progress
        self._cache = cache
        self._started = started
        self._anchored = contextlib.ExitStack()
        self._anchor: Anchor | None = None
        self._yardstick_s: float | None = None

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what runs beside the trials."""
        self.let_go()

    def let_go(self) -> None:
        """Ends the baseline that runs beside the trials."""
        self._anchor = None
        self._anchored.close()

    def run(self, choices: Choices) -> TrialRecord:
        """Returns what comes of a plan: as it was cached, or in a trial of its own.

        Raises:
            ProgramError: The user's program itself does not train.
        """
        name = f"t{len(self.records) + 1:02d}"
        self._progress.starting(name, choices)
        begin = time.monotonic()
        record = self._remembered(choices)
        if record is None:
            fields = self._measured(choices)
            record = TrialRecord(
                name=name, choices=choices, seconds=time.monotonic() - begin, **fields
            )
        record = dataclasses.replace(record, name=name, started_s=begin - self._started)
        self.records.append(record)
        if self._yardstick_s is None and record.measurement is not None:
            self._yardstick_s = record.measurement.quiet_step_time_s
        self._keep(record)
        self._progress.finished(record)
        return record

    def announce(self, name: str, choices: Choices) -> None:
        """Tells the progress what runs now besides trials."""
        self._progress.starting(name, choices)

    def score(self, record: TrialRecord) -> float | None:
        """Returns the value that plans are ranked by; None for one of no use.

        Of no use is also the program as written, where it lacks what is required.
        """
        if record.measurement is None or not record.usable:
            return None
        if not self._options.are_met_by(record.choices):
            return None
        return quiet_score(self._options.objective, record.measurement)

    def best_first(self) -> list[TrialRecord]:
        """Returns the trials that can be used, the best first."""
        scored = [(self.score(record), record) for record in self.records]
        usable = [(score, record) for score, record in scored if score is not None]
        return [record for _, record in sorted(usable, key=lambda pair: -pair[0])]

    def known(self, choices: Choices) -> TrialRecord | None:
        """Returns the trial of a plan, if it ran."""
        return next((r for r in self.records if r.choices == choices), None)

    def remembers(self, choices: Choices) -> bool:
        """Returns whether `run` would take a plan from the cache, without a trial."""
        return self._remembered(choices) is not None

    def refuse(self, choices: Choices, reject: Reject) -> None:
        """Takes back that a plan can be used."""
        for index, record in enumerate(self.records):
            if record.choices == choices:
                refused = dataclasses.replace(
                    record, code=reject.code.value, because=reject.because, cached=False
                )
                self.records[index] = refused
                self._keep(refused)

    def runner(self, choices: Choices) -> TrialRunner:
        """Returns the runner, with the time that a plan may take."""
        return dataclasses.replace(self._runner, timeout_s=self._timeout_s(choices))

    def usual_seconds(self) -> float:
        """Returns what a trial usually takes."""
        run = [record.seconds for record in self.records if not record.cached]
        return statistics.median(run) if run else _DEFAULT_TRIAL_S

    def _keep(self, record: TrialRecord) -> None:
        # The first program that ran is the one as written, whatever is required now.
        if self._cache is not None and self._yardstick_s and not record.cached:
            self._cache.append(record, self._yardstick_s)

    def _remembered(self, choices: Choices) -> TrialRecord | None:
        # The first is always measured: it tells how fast the machine is today.
        if self._cache is None or self._yardstick_s is None:
            return None
        return self._cache.lookup(choices, self._yardstick_s)

    def _measured(self, choices: Choices) -> dict[str, Any]:
        base = self.reference is None
        fields = dict[str, Any]()
        try:
            with contextlib.ExitStack() as stack:
                self._raced(choices, fields, stack, base=base)
        except Failure as failure:
            if base and failure.program is not None:
                raise failure.program from None
            if failure.code is Code.MEMORY and self._anchor is not None:
                # The memory that was short may be what the baseline holds.
                self.let_go()
                return self._measured(choices)
            fields |= {
                "code": failure.code.value,
                "because": failure.because,
                "log": failure.log,
            }
        return fields

    def _raced(
        self,
        choices: Choices,
        fields: dict[str, Any],
        stack: contextlib.ExitStack,
        *,
        base: bool,
    ) -> None:
        """Fills in what a trial's own process shows.

        Raises:
            Failure: It hung, crashed, ran out of memory, or raised.
        """
        leaders = self.best_first()
        leader = self.score(leaders[0]) if leaders else None
        opened = self.runner(choices).open(
            choices, baseline=base, deadline=self.deadline - self.reserved_s
        )
        session = stack.enter_context(opened)
        assert session.observation is not None
        fields.update(self._judged(choices, session.observation))
        # A plan with wrong numbers is not worth its steps.
        if fields.get("code"):
            return
        measured, rung = race(session, self._options.objective, leader, self._anchor)
        fields |= {"measurement": measured, "rung": rung}
        if base and fit_together([measured, measured], self._memory_bytes):
            self._anchor = Anchor(session, measured)
            self._anchored = stack.pop_all()

    def _judged(self, choices: Choices, seen: Observation) -> dict[str, Any]:
        reference = self.reference or seen
        answer = compare(reference, seen, numerics_of(choices))
        if isinstance(answer, Reject):
            return {"code": answer.code.value, "because": answer.because}
        self.reference = reference
        return {"guard": differences(reference, seen)}

    def _timeout_s(self, choices: Choices) -> float:
        given = self._options.budget.trial_seconds
        if given is not None:
            return given
        if not self.records:
            return _FIRST_TRIAL_S
        usual = max(_DEFAULT_TRIAL_S, _TRIAL_FACTOR * self.records[0].seconds)
        compiles = any(choice.name == "compile" for choice in choices)
        return usual * (2.0 if compiles else 1.0)
