"""The search from end to end: baseline, trials, final, plan."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from typing import TYPE_CHECKING

import psutil

from drivetrain_core import (
    Code,
    Plan,
    PlanError,
    Rejected,
    SearchError,
    Slot,
    machine_limits,
)
from drivetrain_core.extending import describe, failures, require_usable
from drivetrain_search.cache.cache import TrialCache
from drivetrain_search.cache.cache_key import cache_key
from drivetrain_search.decision import Decision
from drivetrain_search.descent import Choices, Outcome, Skipped, descend
from drivetrain_search.explanation import cost_of_required, make_plan, not_tried
from drivetrain_search.phase_shares import PhaseShares, fits_beside
from drivetrain_search.prediction.forecast import Forecaster
from drivetrain_search.prediction.mesh_order import Chosen, likely_meshes
from drivetrain_search.prediction.predictor import Predictor
from drivetrain_search.process.orphan_cleanup import search_folder
from drivetrain_search.process.payload import Payload, write_payload
from drivetrain_search.process.trial import TrialRunner
from drivetrain_search.report.report import Report
from drivetrain_search.space import (
    SlotSpace,
    base_plan,
    calm_plans,
    make_space,
    reference_plans,
    require,
    savers_last,
    seed_plans,
    skip_reason,
    with_unused_parameters,
)
from drivetrain_search.trials import Trials

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain_core import Context
    from drivetrain_core.services import SearchProgress
    from drivetrain_search.options import SearchOptions
    from drivetrain_search.report.record import TrialRecord

logger = logging.getLogger(__name__)

_FIRST_TRIAL_S = 300.0
_FORECAST_S = 30.0
_LEAVE_FREE = 0.95
# Of what is expected of the first trial after the baseline's, so much must fit.
_DOUBT = 0.5
# How long the machine is looked at before the first trial, and when it is busy.
_LOOK_S, _BUSY_PERCENT = 0.2, 40.0
# A plan that compiles is begun with where its trial takes at most this part of the time.
_FIRST_PART = 0.12


def search(
    payload: Payload, written: Choices, options: SearchOptions, progress: SearchProgress
) -> tuple[Plan, Report]:
    """Returns the best plan that trains the same model, and what was tried.

    The program as written, with what the options require, is always a candidate:
    unless another plan is better in the final, it is the plan.

    Args:
        payload: The program and its facts.
        written: The user's own program, with gradient averaging if there are ranks.
        options: What the search may do.
        progress: Told about every trial.

    Raises:
        PlanError: What is required cannot be used here, or cannot be sent to a trial.
        ProgramError: The user's program itself does not train, or the objective
            returns no positive number.
        SearchError: The baseline cannot be measured, nor anything in its place; or the
            job is of several nodes.
    """
    started = time.monotonic()
    context = payload.context
    world, on_cpu = context.world, context.device.type == "cpu"
    if world.size > world.local_size:
        message = (
            f"{world.local_size} of {world.size} ranks are on this node, and trials run "
            "on one node: search with the ranks of one node and plan_out=, and give that "
            "plan to the whole job as strategy="
        )
        raise SearchError(message)
    is_busy = on_cpu and psutil.cpu_percent(_LOOK_S) > _BUSY_PERCENT
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(search_folder())
        except OSError as error:
            message = (
                f"the search needs a temporary folder, and cannot make one: {error}; "
                "set TMPDIR to a folder that can be written to"
            )
            raise SearchError(message) from error
        shipped = write_payload(payload, folder)
        runner = TrialRunner(
            payload=shipped,
            folder=folder,
            world_size=world.size,
            on_cpu=on_cpu,
            timeout_s=options.budget.trial_seconds or _FIRST_TRIAL_S,
        )
        cache = None
        if options.cache is not None:
            assert payload.program is not None
            key = cache_key(context, payload.program)
            cache = TrialCache.open(options.cache, key)
        stack.enter_context(progress)
        memory = context.device.memory_bytes
        trials = stack.enter_context(
            Trials(runner, options, progress, cache, started, memory)
        )
        forecasts_s = PhaseShares(options.budget.seconds).forecasts_s
        forecaster = stack.enter_context(
            Forecaster(
                shipped,
                folder,
                context,
                timeout_s=min(_FORECAST_S, forecasts_s),
                device=payload.device,
            )
        )
        capacity = context.device.memory_bytes
        if on_cpu:
            free = machine_limits.memory().available
            capacity = int(_LEAVE_FREE * free / world.local_size)
        predictor = Predictor(forecaster, capacity, on_cpu=on_cpu, limit_s=forecasts_s)

        def choose_meshes(space: Sequence[SlotSpace]) -> Chosen:
            # Measured where there are meshes to choose from only.
            meshes = any(entry.slot is Slot.MESH for entry in space)
            return likely_meshes(space, payload, forecaster.rates if meshes else None)

        return Search(
            context,
            written,
            options,
            trials,
            predictor,
            started,
            choose_meshes,
            is_busy=is_busy,
        ).run()


class Search:
    """One search; its methods are its steps, in order.

    Args:
        context: The facts.
        written: The program as the user wrote it.
        options: What the search may do.
        trials: Runs the trials.
        predictor: What is expected of a plan before its trial.
        started: When the search began, in `time.monotonic` seconds.
        choose_meshes: Leaves the meshes that are worth a trial; None leaves all.
        is_busy: Whether others compute on the cores that the program trains on.
    """

    def __init__(
        self,
        context: Context,
        written: Choices,
        options: SearchOptions,
        trials: Trials,
        predictor: Predictor,
        started: float,
        choose_meshes: Callable[[Sequence[SlotSpace]], Chosen] | None = None,
        *,
        is_busy: bool = False,
    ) -> None:
        """Keeps the parts."""
        self.context = context
        self.is_busy = is_busy
        self.choose_meshes = choose_meshes
        self.written = written
        self.options = options
        self.trials = trials
        self.predictor = predictor
        self.started = started
        self.skipped: list[Rejected] = []
        self.decision = Decision(trials, options.objective, context.device.memory_bytes)
        self.stopped = "no plan was expected to gain any more"
        self.is_finished = True

    def run(self) -> tuple[Plan, Report]:
        """Returns the plan and the report."""
        space = self._space()
        base = self._baseline(space)
        chosen, comparison = base.choices, None
        if base.measurement is None:
            because = self._not_measured(base)
        else:
            self.context = self.context.with_baseline(base.measurement)
            self.predictor.calibrate(base.choices, base.measurement)
            space = self.predictor.in_order(space, base.choices)
            budget_s = self.options.budget.seconds
            if not fits_beside(base.measurement.step_time_s, budget_s):
                # There is time for few trials.
                space = savers_last(space)
            if self.choose_meshes is not None:
                space, unlikely = self.choose_meshes(space)
                self.skipped.extend(unlikely)
            self._descend(space, base)
            chosen, comparison, because = self.decision.decide(base, self.stopped)
            because += cost_of_required(self.trials.records, self.written, base.choices)
        seconds = time.monotonic() - self.started
        plan = make_plan(
            self.context,
            self.trials.records,
            chosen,
            comparison if chosen != base.choices else None,
            because,
            space,
            self.skipped,
            seconds,
            "" if self.is_finished else self.stopped,
        )
        asked = self.options.given
        for name in not_tried(asked, self.trials.records, self.skipped):
            logger.warning("%s was not tried, though asked for: %s", name, self.stopped)
        return plan, Report(
            trials=tuple(self.trials.records),
            chosen=chosen,
            seconds=seconds,
            stopped=self.stopped,
            plan=plan,
            comparison=comparison,
            forecasts=self.predictor.of_trials(self.trials.records),
        )

    def _space(self) -> tuple[SlotSpace, ...]:
        options = self.options
        space, ruled_out = make_space(
            self.context,
            allow=options.considered,
            deny=options.deny,
            changes_algorithm=options.changes_algorithm,
            given=options.given,
        )
        self.skipped.extend(ruled_out)
        self.skipped.extend(
            Rejected(plan=name, code=Code.PLUGIN, because=str(error))
            for name, error in failures().items()
        )
        return require(space, options.fixed, options.named)

    def _baseline(self, space: Sequence[SlotSpace]) -> TrialRecord:
        """Measures the program as written, and with what is required."""
        base = base_plan(space, self.written, self.options.required)
        require_usable(base, self.context)
        written = self.trials.run(self.written)
        if self._is_short_of_time(written):
            # What is required is the plan, measured or not.
            unmeasured = dataclasses.replace(written, choices=base)
            self.trials.records[0] = unmeasured
            return unmeasured
        if written.usable and base == self.written:
            return written
        instead: list[Choices] = [] if base == self.written else [base]
        if not written.usable:
            if written.code == Code.MEMORY:
                instead += self.predictor.mildest_first(reference_plans(space, base))
            elif "find_unused_parameters" in written.because + written.log:
                instead = [with_unused_parameters(base)]
        for plan in instead:
            record = self.trials.run(plan)
            if record.usable:
                if not written.usable:
                    logger.info("the program as written fails (%s)", written.code)
                # The report's first trial is what the others are compared with.
                self.trials.records.remove(record)
                self.trials.records.insert(0, record)
                return record
            if written.usable:
                raise PlanError(
                    Code(record.code),
                    describe(base),
                    because=f"it is required, and fails: {record.because}",
                    fix="drop it from require",
                )
        raise self._no_baseline(written, instead)

    def _is_short_of_time(self, record: TrialRecord) -> bool:
        """Returns whether a trial was not measured for want of the time that was given."""
        given = self.options.budget.trial_seconds is not None
        return record.code == Code.BUDGET or (given and record.code == Code.HANG)

    def _not_measured(self, base: TrialRecord) -> str:
        """Warns that the program as written is all there is; returns why it is the plan."""
        self.is_finished = False
        limit = f"the budget of {self.options.budget.seconds:g} s"
        if base.code == Code.HANG:
            limit = f"the limit of {self.options.budget.trial_seconds:g} s for a trial"
        self.stopped = f"{limit} was too short to measure the program as it is written"
        logger.warning("%s, which is the plan; give a search more time", self.stopped)
        return f"nothing was measured: {self.stopped}"

    def _no_baseline(
        self, record: TrialRecord, instead: Sequence[Choices]
    ) -> SearchError:
        message = (
            f"the program cannot be measured as it is written ({record.code}): "
            f"{record.because}"
        )
        if record.code == Code.MEMORY:
            message += self.predictor.shortfall(record.choices, instead)
        if record.log:
            message += f"\n{record.log[-3000:]}"
        return SearchError(message)

    def _descend(self, space: Sequence[SlotSpace], base: TrialRecord) -> None:
        clock = _Clock(self.trials, self.decision)
        seeds = [
            seed
            for seed in seed_plans(space, base.choices, self.context)
            if clock.may_begin_with(seed) and self._skip_reason(seed) is None
        ]
        walk = descend(
            space,
            base.choices,
            self.trials.score(base) or 0.0,
            [*(calm_plans(space, base.choices) if self.is_busy else []), *seeds[:1]],
            self._skip_reason,
            clock,
        )
        answer: Outcome | None = None
        with contextlib.suppress(StopIteration):
            while True:
                asked = walk.send(answer) if answer is not None else next(walk)
                answer = None
                if isinstance(asked, Skipped):
                    if asked.reason not in self.skipped:
                        self.skipped.append(asked.reason)
                    continue
                record = self.trials.known(asked)
                if record is None:
                    if self._exhausted() and not self.trials.remembers(asked):
                        self.is_finished = False
                        return
                    record = self.trials.run(asked)
                answer = Outcome(self.trials.speed(record))
        if clock.was_short:
            self.is_finished = False
            seconds = f"{self.options.budget.seconds:.0f} s"
            self.stopped = f"the budget of {seconds} has no time for another trial"

    def _skip_reason(self, choices: Choices) -> Rejected | None:
        # What a plan could save is judged on the best one: where compute has become
        # fast, the same wait for data is a larger part of a step.
        leader = self.trials.best_first()[0].measurement
        assert leader is not None
        context = self.context.with_baseline(leader)
        return skip_reason(choices, context) or self.predictor.skip_reason(
            choices, leader.quiet_step_time_s
        )

    def _exhausted(self) -> bool:
        budget = self.options.budget
        run = sum(not record.cached for record in self.trials.records)
        if run < budget.trials:
            return False
        self.stopped = f"the budget of {run} trials was used"
        return True


class _Clock:
    """The time that there is for trials, without that of the final.

    Attributes:
        was_short: Whether there was none for a trial that was asked for.
    """

    def __init__(self, trials: Trials, decision: Decision) -> None:
        self._trials, self._decision = trials, decision
        self.was_short = False

    def seconds(self, plan: Choices) -> float:
        """Returns what a plan's trial is expected to take."""
        return self._trials.cost.seconds(plan)

    def affords(self, plan: Choices) -> bool:
        """Returns whether there is time for a plan's trial, or none is needed."""
        # What one trial on a busy machine says of the next may be far too much.
        doubt = _DOUBT if len(self._trials.records) == 1 else 1.0
        while True:
            self._trials.reserved_s = doubt * self._decision.seconds()
            fits = doubt * self._needed_s(plan) <= self._left_s()
            if fits or self._trials.remembers(plan):
                return True
            if not self._decision.insure_leader():
                self.was_short = True
                return False

    def may_begin_with(self, plan: Choices) -> bool:
        """Returns whether a plan's trial leaves time for others."""
        if self._trials.remembers(plan):
            return True
        trial_s = self.seconds(plan)
        return trial_s <= _FIRST_PART * (
            self._left_s() - self._needed_s(plan) + trial_s
        )

    def _needed_s(self, plan: Choices) -> float:
        """Returns what a trial takes, and the end if the plan is the best."""
        setup_s = self._trials.cost.setup_seconds(plan)
        return self.seconds(plan) + self._decision.seconds_if_best(plan, setup_s)

    def _left_s(self) -> float:
        return self._trials.deadline - time.monotonic()
