"""The trials of one search: what is measured, remembered, and compared with what."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass, field

import pytest

from drivetrain_core import Choice, Code, Measurement, Reject, Slot
from drivetrain_core._plan import Rejected
from drivetrain_core.budget import Budget
from drivetrain_core.numerics.observation import Observation
from drivetrain_search.cache.cache import TrialCache
from drivetrain_search.explanation import cost_of_required, make_plan, not_tried
from drivetrain_search.options import SearchOptions
from drivetrain_search.process.trial import Failure, Outrun
from drivetrain_search.progress import SilentProgress
from drivetrain_search.report.record import TrialRecord
from drivetrain_search.run import Search
from drivetrain_search.space import SlotSpace
from drivetrain_search.trials import Trials

FUSED = (Choice("optimizer_impl", {"kind": "fused"}),)
THREAD = (Choice("cpu_threads", {"num": 1}),)
PARTS = (Choice("micro_batch", {"num": 2}),)
GIB = 1 << 30


def seen(loss=1.0):
    return Observation(
        losses=(loss,), norms={"w": 1.0}, samples={"w": (1.0,)}, moved=frozenset({"w"})
    )


@dataclass
class Session:
    """A built trial whose steps all take as long."""

    step_s: float
    observation: Observation
    peak: int = GIB
    num_measured: int = 0
    setup_s: float = 0.0

    def measure(self, min_steps, min_seconds):
        self.num_measured += 1
        return Measurement(
            step_times_s=(self.step_s,) * max(min_steps, 8),
            samples_per_step=8,
            peak_memory_bytes=self.peak,
        )


@dataclass
class Runner:
    """Stands in for `TrialRunner`: opens what a test gives it, plan by plan."""

    sessions: dict
    timeout_s: float = 60.0
    world_size: int = 1
    opened: list = field(default_factory=list)
    closed: list = field(default_factory=list)
    deadlines: list = field(default_factory=list)
    looks: list = field(default_factory=list)
    is_strict: bool = False
    warm_steps: int = 3
    on_cpu: bool = False

    @contextlib.contextmanager
    def open(self, choices, *, baseline=False, look, deadline=None):
        self.opened.append((choices, baseline))
        self.deadlines.append(deadline)
        self.looks.append(look)
        session = self.sessions[choices]
        if isinstance(session, list):
            session = session.pop(0)
        if isinstance(session, Exception):
            raise session
        yield session
        self.closed.append(choices)


@pytest.fixture
def start(tmp_path):
    """Starts trials that keep what they measure in one folder."""
    opened = []

    def make(sessions, memory_bytes=100 * GIB, cached=True):
        runner = Runner(sessions)
        cache = TrialCache.open(tmp_path, "a" * 64) if cached else None
        options = SearchOptions(budget=Budget(seconds=600.0, trials=20))
        trials = Trials(
            runner, options, SilentProgress(), cache, time.monotonic(), memory_bytes
        )
        opened.append(trials)
        return trials, runner

    yield make
    for trials in opened:
        trials.let_go()


def test_first_program_is_measured_each_time_and_the_others_are_remembered(start):
    sessions = {(): Session(0.1, seen()), FUSED: Session(0.08, seen())}
    first, _ = start(sessions)
    assert not first.run(()).cached
    assert not first.run(FUSED).cached
    again, runner = start({(): Session(0.2, seen()), FUSED: None})
    assert not again.run(()).cached
    record = again.run(FUSED)
    assert record.cached
    # The machine is half as fast today, by the program as written.
    assert record.measurement.step_time_s == pytest.approx(0.16)
    assert [plan for plan, _ in runner.opened] == [()]


@pytest.mark.parametrize(
    ("alone_s", "found_s"), [(0.2, 0.2), (0.101, 0.1), (0.05, 0.05)]
)
def test_program_is_timed_where_nobody_has_observed_it(start, alone_s, found_s):
    trials, runner = start({(): [Session(0.1, seen()), Session(alone_s, seen())]})
    runner.on_cpu = True
    record = trials.run(())
    assert record.measurement.quiet_step_time_s == pytest.approx(found_s)
    assert [look is None for look in runner.looks] == [False, True]
    assert record.guard is not None


def test_program_that_takes_long_to_get_ready_is_timed_where_it_was_observed(start):
    trials, runner = start({(): Session(7.0, seen())})
    runner.on_cpu = True
    assert trials.run(()).measurement.step_time_s == 7.0
    assert len(runner.looks) == 1


def test_program_that_fails_a_second_time_keeps_its_first_measurement(start):
    failure = Failure(Code.CRASH, "it is gone")
    trials, runner = start({(): [Session(0.1, seen()), failure]})
    runner.on_cpu = True
    assert trials.run(()).measurement.step_time_s == pytest.approx(0.1)
    assert len(runner.looks) == 2


def test_yardstick_is_the_program_as_written_whatever_is_first_in_the_list(start):
    sessions = {
        (): Session(0.1, seen()),
        THREAD: Session(0.4, seen()),
        FUSED: Session(0.08, seen()),
    }
    first, _ = start(sessions)
    first.run(())
    required = first.run(THREAD)
    # As a search does that requires one thread.
    first.records.remove(required)
    first.records.insert(0, required)
    first.run(FUSED)
    again, _ = start({(): Session(0.1, seen()), FUSED: None})
    again.run(())
    assert again.run(FUSED).measurement.step_time_s == pytest.approx(0.08)


def test_wrong_numbers_are_not_worth_their_steps(start):
    wrong = Session(0.01, seen(loss=2.0))
    trials, _ = start({(): Session(0.1, seen()), FUSED: wrong})
    trials.run(())
    record = trials.run(FUSED)
    assert record.code == "NUMERICS"
    assert (record.measurement, wrong.num_measured) == (None, 0)
    assert [r.choices for r in trials.best_first()] == [()]


def test_plan_that_was_outrun_is_known_by_its_speed_and_of_no_use(start):
    slow = Outrun((0.21, 0.2), peak_memory_bytes=5)
    trials, runner = start({(): Session(0.1, seen()), FUSED: slow})
    trials.run(())
    assert (runner.looks[0].until_s, runner.looks[0].outrun_above_s) != (None, None)
    record = trials.run(FUSED)
    assert runner.looks[1].outrun_above_s > 0.1
    assert (record.code, record.usable) == ("SLOWER", False)
    assert record.because == "2.0 times the best plan's step, seen after 3 steps"
    assert (trials.score(record), trials.speed(record)) == (None, 8 / 0.2)
    assert record.measurement.peak_memory_bytes == 5
    assert [r.choices for r in trials.best_first()] == [()]


def test_plan_that_was_outrun_is_tried_again_where_the_best_is_slower(start):
    fast, slow = Session(0.05, seen()), Outrun((0.08, 0.08), peak_memory_bytes=5)
    first, _ = start({(): Session(0.1, seen()), THREAD: fast, FUSED: slow})
    for plan in ((), THREAD, FUSED):
        first.run(plan)
    again, runner = start({(): Session(0.1, seen()), FUSED: Session(0.08, seen())})
    again.run(())
    assert not again.remembers(FUSED)
    assert again.run(FUSED).usable
    assert [plan for plan, _ in runner.opened] == [(), FUSED]


def test_plan_that_a_slow_minute_made_slow_is_tried_again(start):
    base = Session(0.1, seen())
    slow = Outrun((0.2, 0.2), peak_memory_bytes=5)
    trials, runner = start({(): base, FUSED: [slow, Session(0.2, seen())]})
    trials.run(())
    # The machine takes twice as long for whatever it is.
    base.step_s = 0.2
    record = trials.run(FUSED)
    assert record.usable
    assert [plan for plan, _ in runner.opened] == [(), FUSED, FUSED]
    assert runner.looks[2].outrun_above_s is None
    # The turns of the baseline give the plan back what it lost.
    assert record.measurement.step_time_s == pytest.approx(0.1)


def test_other_objective_than_speed_drops_no_plan_for_its_steps(start):
    trials, runner = start({(): Session(0.1, seen()), FUSED: Session(0.2, seen())})
    trials._options = dataclasses.replace(trials._options, objective=lambda m: 1.0)
    trials.run(())
    trials.run(FUSED)
    assert runner.looks[1].outrun_above_s is None


def test_baseline_with_long_steps_does_not_run_beside_trials(start):
    # 600 s are 60 steps.
    long = Session(10.0, seen())
    trials, runner = start({(): long, FUSED: Session(5.0, seen())})
    trials.run(())
    assert runner.closed == [()]


def test_baseline_makes_room_for_a_plan_that_lacked_memory(start):
    short = Failure(Code.MEMORY, "out of memory")
    sessions = {(): Session(0.1, seen()), FUSED: [short, Session(0.08, seen())]}
    trials, runner = start(sessions)
    trials.run(())
    assert runner.closed == []
    assert trials.run(FUSED).usable
    assert () in runner.closed
    assert [plan for plan, _ in runner.opened] == [(), FUSED, FUSED]


def test_plan_that_lacks_memory_by_itself_is_tried_once_more_only(start):
    short = [Failure(Code.MEMORY, "out of memory") for _ in range(2)]
    trials, runner = start({(): Session(0.1, seen()), FUSED: short})
    trials.run(())
    assert trials.run(FUSED).code == "MEMORY"
    assert len(runner.opened) == 3


def test_baseline_that_fills_the_memory_does_not_stay(start):
    large = Session(0.1, seen(), peak=60 * GIB)
    trials, runner = start({(): large, FUSED: Session(0.08, seen())})
    trials.run(())
    assert runner.closed == [()]
    measured = large.num_measured
    trials.run(FUSED)
    assert large.num_measured == measured


def test_refused_plan_is_out_and_stays_out(start):
    sessions = {(): Session(0.1, seen()), FUSED: Session(0.05, seen())}
    first, _ = start(sessions)
    first.run(())
    first.run(FUSED)
    assert first.best_first()[0].choices == FUSED
    first.refuse(FUSED, Reject(Code.NUMERICS, "another gradient"))
    assert [r.choices for r in first.best_first()] == [()]
    again, _ = start({(): Session(0.1, seen()), FUSED: None})
    again.run(())
    assert again.run(FUSED).because == "another gradient"


def test_what_is_compiled_may_take_twice_as_long(start):
    trials, _ = start({(): Session(0.1, seen())}, cached=False)
    assert trials.runner(()).timeout_s == 300.0
    trials.run(())
    compiled = (Choice("compile", {"scope": "block"}),)
    assert trials.runner(compiled).timeout_s == 2 * trials.runner(FUSED).timeout_s


def test_trial_leaves_the_time_that_is_kept_for_the_final(start):
    trials, runner = start({(): Session(0.1, seen()), FUSED: Session(0.08, seen())})
    trials.run(())
    trials.reserved_s = 25.0
    trials.run(FUSED)
    assert runner.deadlines == [trials.deadline, trials.deadline - 25.0]


@dataclass
class Predictor:
    """Stands in for what is expected of plans: it has no doubts."""

    def skip_reason(self, choices, leader_step_s):
        return None


@pytest.mark.parametrize("num_trials", [1, 20])
def test_plan_that_is_remembered_needs_neither_trials_nor_time(
    start, context, num_trials
):
    sessions = {(): Session(0.1, seen()), THREAD: Session(0.08, seen())}
    first, _ = start(sessions)
    first.run(())
    assert not first.remembers(THREAD)
    first.run(THREAD)

    again, runner = start({(): Session(0.1, seen()), THREAD: None})
    base = again.run(())
    assert again.remembers(THREAD)
    assert not again.remembers(PARTS)
    # Either is over: the trials, or the time.
    again.deadline = time.monotonic() + (1e6 if num_trials == 1 else 0.0)
    options = SearchOptions(budget=Budget(seconds=600.0, trials=num_trials))
    found = Search(context, (), options, again, Predictor(), 0.0)
    threads = SlotSpace(slot=Slot.CPU_THREADS, candidates=THREAD, monotone=False)
    parts = SlotSpace(slot=Slot.MICRO_BATCH, candidates=PARTS, monotone=False)
    found._descend((threads, parts), base)
    assert [record.choices for record in again.records] == [(), THREAD]
    assert again.records[1].cached
    assert [plan for plan, _ in runner.opened] == [()]
    assert found.stopped.startswith("the budget")
    assert not found.is_finished


@pytest.mark.parametrize(("is_busy", "first"), [(True, THREAD), (False, PARTS)])
def test_busy_machine_tries_fewer_threads_first(start, context, is_busy, first):
    sessions = {plan: Session(0.1, seen()) for plan in ((), THREAD, PARTS)}
    sessions[(*THREAD, *PARTS)] = sessions[(*PARTS, *THREAD)] = Session(0.1, seen())
    trials, _ = start(sessions)
    base = trials.run(())
    options = SearchOptions(budget=Budget(seconds=600.0, trials=2))
    found = Search(context, (), options, trials, Predictor(), 0.0, is_busy=is_busy)
    parts = SlotSpace(slot=Slot.MICRO_BATCH, candidates=PARTS, monotone=False)
    threads = SlotSpace(slot=Slot.CPU_THREADS, candidates=THREAD, monotone=False)
    found._descend((parts, threads), base)
    assert [record.choices for record in trials.records] == [(), first]


def record_of(choices, step_s, **fields):
    measured = Measurement(step_times_s=(step_s,) * 4, samples_per_step=8)
    return TrialRecord(
        name="t01", choices=choices, seconds=1.0, measurement=measured, **fields
    )


def test_what_is_required_is_compared_with_the_program_as_written():
    written, base = record_of((), 0.068), record_of(THREAD, 0.1)
    said = "; what is required runs at 0.68x of the program as written"
    assert cost_of_required([base, written], (), THREAD) == said
    assert cost_of_required([written], (), ()) == ""
    failed = record_of((), 0.068, code="ERROR", because="it fails")
    assert cost_of_required([base, failed], (), THREAD) == ""


@pytest.mark.parametrize("unfinished", ["", "the budget was used"])
def test_what_the_budget_left_no_time_for_is_named(context, unfinished):
    threads = SlotSpace(slot=Slot.CPU_THREADS, candidates=THREAD, monotone=False)
    parts = SlotSpace(slot=Slot.MICRO_BATCH, candidates=PARTS, monotone=False)
    trials = [record_of((), 0.1), record_of(THREAD, 0.2)]
    plan = make_plan(
        context, trials, (), None, "", (threads, parts), (), 1.0, unfinished
    )
    because = {reason.slot: reason.because for reason in plan.why}
    assert because["cpu_threads"].endswith("measured 0.50x of it")
    assert because["micro_batch"] == (
        f"nothing else was tried: {unfinished}"
        if unfinished
        else "no plan that differs only here was measured"
    )


def test_answer_that_failed_in_its_trial_is_a_reason(context):
    threads = SlotSpace(slot=Slot.CPU_THREADS, candidates=THREAD, monotone=False)
    slower = "2.0 times the best plan's step, seen after 3 steps"
    dropped = record_of(THREAD, 0.2, code="SLOWER", because=f"{slower}\nmore of it")
    plan = make_plan(
        context, [record_of((), 0.1), dropped], (), None, "", (threads,), (), 1.0
    )
    because = {reason.slot: reason.because for reason in plan.why}
    assert because["cpu_threads"] == f"{THREAD[0]}: {slower}"


def test_what_is_asked_for_and_not_tried_is_found():
    trials = [record_of((), 0.1), record_of(THREAD, 0.2)]
    skipped = [Rejected(plan="micro_batch(num=2)", code=Code.SLOWER, because="")]
    asked = ("cpu_threads", "micro_batch", "precision")
    assert not_tried(asked, trials, skipped) == ["precision"]
