"""Runs the trials of one search, and keeps what came of each."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING, Any, Self

from drivetrain_core import Code, Reject
from drivetrain_core.extending import numerics_of
from drivetrain_core.numerics.guard import Observation, compare, differences
from drivetrain_core.objective import throughput
from drivetrain_search.final import fit_together
from drivetrain_search.phase_shares import PhaseShares, fits_beside
from drivetrain_search.process.trial import Failure, Look, Outrun, TrialRunner
from drivetrain_search.race import quiet_score, race, step_bounds_s
from drivetrain_search.reference_trial import ReferenceTrial
from drivetrain_search.report.record import TrialRecord
from drivetrain_search.stopping import is_outrun, step_noise
from drivetrain_search.time_budget import warm_steps
from drivetrain_search.trial_cost import TrialCost

if TYPE_CHECKING:
    from drivetrain_core import Measurement
    from drivetrain_core.services import SearchProgress
    from drivetrain_search.cache.cache import TrialCache
    from drivetrain_search.descent import Choices
    from drivetrain_search.options import SearchOptions
    from drivetrain_search.process.trial import Session

_DEFAULT_TRIAL_S = 60.0
_FIRST_TRIAL_S = 300.0
_FIRST_SHARE = 0.25
_TRIAL_FACTOR = 5.0
_SHORT_S = 0.05


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
        shares: What each phase may take of the budget.
    """

    def __init__(
        self,
        runner: TrialRunner,
        options: SearchOptions,
        progress: SearchProgress,
        cache: TrialCache | None,
        started: float,
        memory_bytes: int,
    ) -> None:
        """Begins without trials."""
        self._memory_bytes = memory_bytes
        self.records: list[TrialRecord] = []
        self.reference: Observation | None = None
        self.shares = PhaseShares(options.budget.seconds)
        self.deadline = started + options.budget.seconds
        self.reserved_s = 0.0
        self._runner = runner
        self._options = options
        self._progress = progress
        self._cache = cache
        self._started = started
        self._anchored = contextlib.ExitStack()
        self._reference: ReferenceTrial | None = None
        self._yardstick_s: float | None = None

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what runs beside the trials."""
        self.let_go()

    def let_go(self) -> None:
        """Ends the baseline that runs beside the trials."""
        self._reference = None
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

    def speed(self, record: TrialRecord) -> float | None:
        """Returns the value that a trial saw, of a plan that was dropped for it as well."""
        if record.code == Code.SLOWER and record.measurement is not None:
            return quiet_score(self._options.objective, record.measurement)
        return self.score(record)

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
        measured = [
            record.measurement.step_time_s
            for record in (*self.records[:1], self.known(choices))
            if record is not None and record.measurement is not None
        ]
        runner = dataclasses.replace(
            self._runner,
            timeout_s=self._timeout_s(choices),
            is_strict=self._options.budget.trial_seconds is not None,
        )
        if measured:
            runner = dataclasses.replace(runner, warm_steps=warm_steps(max(measured)))
        return runner

    @property
    def cost(self) -> TrialCost:
        """What trials are expected to take."""
        return TrialCost(self.records, self.shares)

    def _keep(self, record: TrialRecord) -> None:
        # The first program that ran is the one as written, whatever is required now.
        if self._cache is not None and self._yardstick_s and not record.cached:
            self._cache.append(record, self._yardstick_s)

    def _remembered(self, choices: Choices) -> TrialRecord | None:
        # The first is always measured: it tells how fast the machine is today.
        if self._cache is None or self._yardstick_s is None:
            return None
        return self._cache.lookup(choices, self._yardstick_s)

    def _measured(self, choices: Choices, *, in_a_race: bool = True) -> dict[str, Any]:
        base = self.reference is None
        fields = dict[str, Any]()
        try:
            with contextlib.ExitStack() as stack:
                self._raced(choices, fields, stack, base=base, in_a_race=in_a_race)
        except Outrun as outrun:
            if in_a_race and self._is_slow_now(outrun):
                return self._measured(choices, in_a_race=False)
            fields |= self._outrun(outrun)
        except Failure as failure:
            if base and failure.program is not None:
                raise failure.program from None
            if failure.code is Code.MEMORY and self._reference is not None:
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
        in_a_race: bool,
    ) -> None:
        """Fills in what a trial's own process shows.

        Raises:
            Failure: It hung, crashed, ran out of memory, or raised.
            Outrun: Its first steps were far slower than those of the best plan.
        """
        leaders = self.best_first()
        leader = leaders[0].measurement if leaders else None
        opened = self.runner(choices).open(
            choices,
            baseline=base,
            look=self._look(leader, base=base) if in_a_race else Look(),
            deadline=self.deadline - self.reserved_s,
        )
        session = stack.enter_context(opened)
        assert session.observation is not None
        fields.update(self._judged(choices, session.observation))
        # A plan with wrong numbers is not worth its steps.
        if fields.get("code"):
            return
        limit_s, again_s = self.shares.turns_s, 0.0
        if base:
            again_s = self._unwatched_s(session)
            end_s = self._started + self.shares.baseline_s - again_s
            limit_s = max(limit_s, end_s - time.monotonic())
        measured, outrun = race(
            session,
            self._options.objective,
            leader,
            self._reference,
            step_s=session.step_s,
            limit_s=limit_s,
        )
        fields |= {"measurement": measured, "rung": 0 if outrun else 1}
        beside = fits_beside(measured.step_time_s, self.shares.seconds)
        if base and beside and fit_together([measured] * 2, self._memory_bytes):
            self._reference = ReferenceTrial(session, measured)
            self._anchored = stack.pop_all()
            if again_s:
                fields["measurement"] = self._unwatched(choices, measured)

    def _unwatched_s(self, session: Session) -> float:
        """Returns what it takes to time a program where nobody observes it; 0 for not."""
        ready_s = session.setup_s + self._runner.warm_steps * session.step_s
        if not self._runner.on_cpu or ready_s > self.shares.unwatched_s:
            return 0.0
        return ready_s + self.shares.turns_s

    def _unwatched(self, choices: Choices, watched: Measurement) -> Measurement:
        """Returns what the program as written measures where nobody has observed it.

        What an observation allocates and frees leaves the C library with memory that it
        gives back no more, and the steps after it without the page faults that they have
        by themselves: a program of large embeddings was twice as fast for that.
        """
        deadline = self.deadline - self.reserved_s
        try:
            with self.runner(choices).open(
                choices, look=None, deadline=deadline
            ) as session:
                alone, _ = race(
                    session,
                    self._options.objective,
                    None,
                    self._reference,
                    step_s=session.step_s,
                    limit_s=self.shares.turns_s,
                )
        except Failure:
            return watched
        fast_s, slow_s = step_bounds_s(watched)
        if fast_s <= alone.quiet_step_time_s <= slow_s:
            return watched
        return dataclasses.replace(
            alone, flops_per_step=watched.flops_per_step, setup_s=watched.setup_s
        )

    def _look(self, leader: Measurement | None, *, base: bool) -> Look:
        """Returns how to observe a trial: the baseline in its time, others to the leader's."""
        if base:
            return Look(until_s=self._started + self.shares.observed_s)
        # What else is maximised may be worth a slower step.
        if leader is None or self._options.objective is not throughput:
            return Look()
        # The first steps of a process say little where steps are short, nor cost much.
        if leader.quiet_step_time_s < _SHORT_S:
            return Look()
        _, slow_s = step_bounds_s(leader)
        return Look(outrun_above_s=slow_s, noise=step_noise(leader.step_times_s))

    def _is_slow_now(self, outrun: Outrun) -> bool:
        """Returns whether it is the machine that is slow, and perhaps not the plan."""
        if self._reference is None:
            return False
        slowdown = self._reference.slowdown_now()
        look = self._look(self.best_first()[0].measurement, base=False)
        assert look.outrun_above_s is not None
        return not is_outrun(
            outrun.step_times_s, slowdown * look.outrun_above_s, look.noise
        )

    def _outrun(self, outrun: Outrun) -> dict[str, Any]:
        """Returns what is known of a plan that was looked at no further."""
        base, leader = self.records[0].measurement, self.best_first()[0].measurement
        assert base is not None
        assert leader is not None
        measured = dataclasses.replace(
            base,
            step_times_s=outrun.step_times_s,
            peak_memory_bytes=outrun.peak_memory_bytes,
            flops_per_step=None,
            data_share=0.0,
            optimizer_share=0.0,
            setup_s=0.0,
        )
        ratio = measured.quiet_step_time_s / leader.quiet_step_time_s
        number = len(outrun.step_times_s)
        return {
            "measurement": measured,
            "code": Code.SLOWER.value,
            "because": f"{ratio:.1f} times the best plan's step, seen after "
            f"{1 + number} steps",
        }

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
            return max(_FIRST_TRIAL_S, _FIRST_SHARE * self.shares.seconds)
        usual = max(_DEFAULT_TRIAL_S, _TRIAL_FACTOR * self.records[0].seconds)
        compiles = any(choice.name == "compile" for choice in choices)
        return usual * (2.0 if compiles else 1.0)
