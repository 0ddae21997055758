"""The end of a search: who meets in the final, who wins it, and who is refused."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass

import pytest

from drivetrain_core import Choice, Code, Measurement, Ok, Reject
from drivetrain_core.numerics.observation import Observation
from drivetrain_core.objective import throughput
from drivetrain_search import last_check
from drivetrain_search.decision import Decision
from drivetrain_search.phase_shares import PhaseShares
from drivetrain_search.process.trial import Failure
from drivetrain_search.report.record import TrialRecord
from drivetrain_search.score import score_of
from drivetrain_search.verify import structure_of

FUSED = (Choice("optimizer_impl", {"kind": "fused"}),)
FOREACH = (Choice("optimizer_impl", {"kind": "foreach"}),)
THREAD = (Choice("cpu_threads", {"num": 1}),)
BF16 = (Choice("precision", {"dtype": "bf16_autocast"}),)
BASE = ()
SETUP_S, CHECK_S = 0.1, 4.0


def measured(step_s):
    return Measurement(step_times_s=(step_s,) * 8, samples_per_step=8, setup_s=SETUP_S)


@dataclass
class Process:
    """Stands in for a trial's session."""

    stage: Stage
    step_s: float

    def measure(self, min_steps, min_seconds):
        self.stage.now += max(min_steps * self.step_s, min_seconds)
        return measured(self.step_s)


class Stage:
    """Stands in for `Trials`: trials that ran, and what a final will show.

    Args:
        trials: The step of each plan in its trial, in seconds.
        final: The step in each process of the final; that of the trial when missing.
    """

    timeout_s = 60.0
    world_size = 1
    # Over as many steps as have a trajectory.
    reference = Observation(losses=(1.0,) * 14, norms={}, samples={}, moved=frozenset())

    def __init__(self, trials, final=None, seconds=1000.0):
        self.records = [
            TrialRecord(
                name=f"t{i}", choices=plan, measurement=measured(step_s), seconds=1.0
            )
            for i, (plan, step_s) in enumerate(trials.items())
        ]
        self.steps = {plan: iter(steps) for plan, steps in (final or {}).items()}
        self.usual = trials
        self.opened = []
        self.refused = []
        self.alone = False
        self.now, self.deadline, self.shares = 0.0, seconds, PhaseShares(seconds)

    def score(self, record):
        if record.choices in self.refused:
            return None
        return score_of(throughput, record.measurement, record.measurement.step_time_s)

    def best_first(self):
        usable = [r for r in self.records if self.score(r) is not None]
        return sorted(usable, key=self.score, reverse=True)

    def refuse(self, choices, reject):
        self.refused.append(choices)

    def runner(self, choices):
        return self

    def announce(self, name, choices):
        pass

    def let_go(self):
        self.alone = True

    @contextlib.contextmanager
    def open(self, choices, *, look, deadline=None):
        self.opened.append(choices)
        step_s = next(self.steps.get(choices, iter(())), self.usual[choices])
        if isinstance(step_s, Failure):
            raise step_s
        self.now += SETUP_S
        yield Process(self, step_s)


def checked_by(monkeypatch, stage, check):
    """Lets `check` answer for the thorough check, on the stage's clock."""

    def verify(runner, choices, *args, structures, **kwargs):
        stage.now += CHECK_S
        answer = check(choices)
        structures[structure_of(choices)] = Ok()
        return answer

    monkeypatch.setattr("time.monotonic", lambda: stage.now)
    monkeypatch.setattr(last_check, "verify", verify)


@pytest.fixture
def decide(monkeypatch):
    """Decides on a stage; `check` says what the thorough check answers to a plan."""

    def run(stage, check=lambda plan: Ok()):
        checked_by(monkeypatch, stage, check)
        found = Decision(stage, throughput, memory_bytes=1 << 40)
        return found.decide(stage.records[0], "all was tried")

    return run


def test_fastest_plan_wins_in_two_sets_of_processes(decide):
    stage = Stage({BASE: 0.1, BF16: 0.05, FUSED: 0.099})
    chosen, comparison, because = decide(stage)
    assert chosen == BF16
    assert comparison.speedup == pytest.approx(2.0)
    assert "2.00x in the final" in because
    assert stage.opened == [BASE, BF16] * 2


def test_trial_that_saw_far_more_than_the_final_is_told_of(decide):
    stage = Stage({BASE: 0.1, BF16: 0.04}, {BF16: [0.09, 0.09]})
    _, comparison, because = decide(stage)
    assert comparison.speedup == pytest.approx(0.1 / 0.09)
    assert because.endswith("(its trial: 2.50x; the machine was not quiet)")


def test_final_that_saw_far_more_than_the_trial_is_not_promised(decide):
    stage = Stage({BASE: 0.1, BF16: 0.04}, {BF16: [0.0001, 0.0001]})
    chosen, comparison, because = decide(stage)
    assert chosen == BF16
    assert comparison.speedup == pytest.approx(2.5)
    assert because.startswith("2.50x in its trial; the final saw more")
    assert "1000" not in because


def test_gain_whose_interval_says_nothing_is_not_taken(decide):
    stage = Stage({BASE: 0.1, BF16: 0.05}, {BF16: [0.001, 0.9] * 3})
    chosen, comparison, because = decide(stage)
    assert chosen == BASE
    assert comparison.high > 4 * comparison.low
    assert "was only" in because


def test_trial_that_is_near_the_final_is_not_told_of(decide):
    _, _, because = decide(Stage({BASE: 0.1, BF16: 0.05}, {BF16: [0.06, 0.06]}))
    assert "its trial" not in because


def test_plan_that_was_lucky_in_its_trial_loses_the_final(decide):
    stage = Stage({BASE: 0.1, THREAD: 0.05, BF16: 0.051}, {THREAD: [0.056, 0.056]})
    chosen, comparison, _ = decide(stage)
    assert chosen == BF16
    assert comparison.speedup == pytest.approx(0.1 / 0.051)


def test_one_lucky_process_of_the_final_does_not_decide(decide):
    stage = Stage(
        {BASE: 0.1, THREAD: 0.050, BF16: 0.050},
        {THREAD: [0.049, 0.053], BF16: [0.050, 0.050]},
    )
    assert decide(stage)[0] == BF16


def test_finalist_that_is_far_behind_is_not_in_the_second_set(decide):
    stage = Stage({BASE: 0.1, THREAD: 0.050, BF16: 0.051}, {BF16: [0.060]})
    assert decide(stage)[0] == THREAD
    assert stage.opened.count(BF16) == 1
    assert stage.opened.count(THREAD) == stage.opened.count(BASE) == 2


def test_plan_joins_the_final_when_a_lucky_one_falls_back(decide):
    stage = Stage({BASE: 0.1, THREAD: 0.045, BF16: 0.050}, {THREAD: [0.060, 0.060]})
    chosen, comparison, _ = decide(stage)
    assert stage.opened[:2] == [BASE, THREAD]
    assert chosen == BF16
    assert comparison.speedup == pytest.approx(2.0)


def test_plan_whose_processes_differ_more_than_it_gains_is_no_gain(decide):
    steps = {BASE: [1.0] * 6, FUSED: [0.8, 1.06, 0.83, 1.02, 0.97, 1.05]}
    stage = Stage({BASE: 1.0, FUSED: 0.85}, steps)
    chosen, comparison, _ = decide(stage)
    assert chosen == BASE
    assert comparison.low < 1.0
    # It was given every set that there is.
    assert stage.opened.count(FUSED) == 6


def test_plan_whose_processes_differ_less_than_it_gains_wins(decide):
    steps = {BASE: [1.0] * 6, FUSED: [0.7, 0.8, 0.75, 0.78, 0.74, 0.76]}
    chosen, comparison, _ = decide(Stage({BASE: 1.0, FUSED: 0.75}, steps))
    assert chosen == FUSED
    assert 1.0 < comparison.low < comparison.speedup < comparison.high


def test_plans_far_from_the_best_are_no_finalists(decide):
    stage = Stage({BASE: 0.1, THREAD: 0.050, BF16: 0.060})
    assert decide(stage)[0] == THREAD
    assert BF16 not in stage.opened


def test_winner_that_is_refused_leaves_the_place_to_the_next(decide):
    stage = Stage({BASE: 0.1, BF16: 0.050, THREAD: 0.051})
    refused = Reject(Code.NUMERICS, "another loss")
    chosen, _, _ = decide(stage, lambda plan: refused if plan == BF16 else Ok())
    assert chosen == THREAD
    assert stage.refused == [BF16]


def test_baseline_stays_when_all_are_refused(decide):
    stage = Stage({BASE: 0.1, BF16: 0.050, THREAD: 0.051})
    chosen, _, because = decide(stage, lambda plan: Reject(Code.NUMERICS, "no"))
    assert chosen == BASE
    assert "no other plan was better" in because


def test_gain_that_the_final_does_not_show_is_no_gain(decide):
    stage = Stage({BASE: 0.1, THREAD: 0.09}, {THREAD: [0.1, 0.1]})
    chosen, comparison, because = decide(stage)
    assert chosen == BASE
    assert comparison.speedup == pytest.approx(1.0)
    assert "was only 1.00x" in because


def test_without_a_better_trial_there_is_no_final(decide):
    stage = Stage({BASE: 0.1, THREAD: 0.2})
    chosen, comparison, because = decide(stage)
    assert (chosen, comparison) == (BASE, None)
    assert because == "no plan was better in its trial; all was tried"
    assert stage.opened == []


def test_final_that_one_finalist_breaks_goes_on_with_the_best(decide):
    broken = Failure(Code.CRASH, "gone")
    stage = Stage({BASE: 0.1, BF16: 0.050, THREAD: 0.051}, {THREAD: [broken]})
    assert decide(stage)[0] == BF16
    assert stage.opened[-2:] == [BASE, BF16]


def test_first_set_stands_when_the_second_fails(decide):
    broken = Failure(Code.CRASH, "gone")
    stage = Stage({BASE: 0.1, BF16: 0.050}, {BF16: [0.050, broken]})
    chosen, comparison, _ = decide(stage)
    assert chosen == BF16
    assert comparison.speedup == pytest.approx(2.0)


def test_final_that_fails_leaves_the_baseline(decide):
    broken = Failure(Code.CRASH, "gone")
    stage = Stage({BASE: 0.1, BF16: 0.050}, {BF16: [broken]})
    chosen, comparison, because = decide(stage)
    assert (chosen, comparison) == (BASE, None)
    assert because == "the final failed (CRASH): gone"


def test_little_time_is_left_to_one_finalist_in_one_set(decide):
    stage = Stage({BASE: 0.1, BF16: 0.050, THREAD: 0.051}, seconds=5.5)
    assert decide(stage)[0] == BF16
    assert stage.opened == [BASE, BF16]


def test_more_time_lets_one_finalist_run_in_two_sets(decide):
    stage = Stage({BASE: 0.1, BF16: 0.050, THREAD: 0.060}, seconds=10.0)
    assert decide(stage)[0] == BF16
    assert stage.opened == [BASE, BF16] * 2


def test_plan_that_stood_its_check_wins_when_that_of_a_later_leader_is_late(decide):
    stage = Stage({BASE: 0.1, THREAD: 0.050, BF16: 0.050}, {THREAD: [0.049, 0.053]})

    def check(plan):
        if plan == BF16:
            raise Failure(Code.BUDGET, "the time is over")
        return Ok()

    chosen, comparison, because = decide(stage, check)
    assert chosen == THREAD
    assert comparison.speedup == pytest.approx(2.0)
    assert "in the final" in because


def test_nothing_is_chosen_whose_check_was_broken_off(decide):
    def check(plan):
        raise Failure(Code.BUDGET, "the time is over")

    chosen, _, because = decide(Stage({BASE: 0.1, BF16: 0.050}), check)
    assert chosen == BASE
    assert because == "the last check was broken off: the time is over"


@pytest.mark.parametrize(("step_s", "wins"), [(0.05, True), (0.09, False)])
def test_without_time_for_a_final_a_checked_plan_far_ahead_is_chosen(
    monkeypatch, step_s, wins
):
    whole = (Choice("compile", {"scope": "whole"}),)
    late = Failure(Code.BUDGET, "the time is over")
    stage = Stage({BASE: 0.1, (*BF16, *whole): step_s}, {BASE: [late]})
    checked_by(monkeypatch, stage, lambda plan: Ok())
    found = Decision(stage, throughput, memory_bytes=1 << 40)
    assert found.insure_leader()
    chosen, comparison, because = found.decide(stage.records[0], "all was tried")
    if wins:
        assert chosen == (*BF16, *whole)
        assert comparison.speedup == pytest.approx(2.0)
        assert because == "2.00x in its trial; there was no time for a final"
    else:
        assert (chosen, comparison) == (BASE, None)
        assert because == "the final failed (BUDGET): the time is over"


def test_plan_that_was_not_checked_is_not_chosen_without_a_final(decide):
    late = Failure(Code.BUDGET, "the time is over")
    stage = Stage({BASE: 0.1, BF16: 0.05}, {BASE: [late]})
    assert decide(stage)[:2] == (BASE, None)


def test_finalist_that_there_is_time_for_goes_before_a_faster_one(decide):
    stage = Stage({BASE: 0.1, BF16: 0.050, THREAD: 0.052}, seconds=5.0)
    slow = dataclasses.replace(measured(0.050), setup_s=90.0)
    stage.records[1] = dataclasses.replace(stage.records[1], measurement=slow)
    assert decide(stage)[0] == THREAD
    assert BF16 not in stage.opened


def test_end_of_a_search_counts_what_the_check_of_a_new_best_compiles():
    whole = Choice("compile", {"scope": "whole"})
    stage = Stage({BASE: 0.1, BF16: 0.05})
    found = Decision(stage, throughput, memory_bytes=1 << 40)
    soon = found.seconds()
    assert found.seconds_if_best(FUSED, SETUP_S) == pytest.approx(soon, rel=0.2)
    assert found.seconds_if_best((*BF16, whole), 30.0) > soon + 30.0


def test_noise_of_the_trials_makes_the_final_longer(decide):
    calm, busy = Stage({BASE: 0.1, BF16: 0.08}), Stage({BASE: 0.1, BF16: 0.08})
    busy.records = [
        dataclasses.replace(
            record,
            measurement=dataclasses.replace(
                record.measurement,
                step_times_s=tuple(
                    time_s * (1.0 + 0.6 * (index % 2))
                    for index, time_s in enumerate(record.measurement.step_times_s)
                ),
            ),
        )
        for record in busy.records
    ]
    for stage in (calm, busy):
        decide(stage)
    assert busy.now > calm.now


def test_plan_is_checked_once_for_the_whole_final(decide):
    asked = []

    def check(plan):
        asked.append(plan)
        return Ok()

    decide(Stage({BASE: 0.1, BF16: 0.050, THREAD: 0.060}), check)
    assert asked == [BF16]


def test_plan_that_falls_in_its_early_check_runs_no_more(decide):
    stage = Stage({BASE: 0.1, BF16: 0.050, THREAD: 0.052})

    def check(plan):
        return Reject(Code.NUMERICS, "wrong", "drop it") if plan == BF16 else Ok()

    assert decide(stage, check)[0] == THREAD
    assert stage.refused == [BF16]
    assert stage.opened == [BASE, BF16, THREAD, BASE, THREAD]


def test_check_of_a_structure_that_was_never_compiled_is_kept_time_for():
    whole = Choice("compile", {"scope": "whole"})
    quick, first = (*BF16, whole), (*BF16, whole, *FUSED)
    stage = Stage({BASE: 0.1, quick: 0.05, first: 0.06})
    found = Decision(stage, throughput, memory_bytes=1 << 40)
    soon = found.seconds()
    # The first plan with this code compiled it; the faster one found it ready.
    slow = dataclasses.replace(measured(0.06), setup_s=30.0)
    stage.records[2] = dataclasses.replace(stage.records[2], measurement=slow)
    assert found.seconds() > soon + 29.0
    # What was looked at before needs no compiler again.
    found._check._structures[(whole,)] = Ok()
    assert found.seconds() <= soon


def test_structure_that_compiles_nothing_needs_no_more_time():
    whole = Choice("compile", {"scope": "whole"})
    stage = Stage({BASE: 0.1, BF16: 0.05, (*BF16, whole): 0.06})
    found = Decision(stage, throughput, memory_bytes=1 << 40)
    soon = found.seconds()
    slow = dataclasses.replace(measured(0.06), setup_s=30.0)
    stage.records[2] = dataclasses.replace(stage.records[2], measurement=slow)
    assert found.seconds() <= soon


def test_early_check_of_the_leader_frees_the_time_that_was_kept(monkeypatch):
    whole = Choice("compile", {"scope": "whole"})
    leader = (*BF16, whole)
    stage = Stage({BASE: 0.1, leader: 0.05, THREAD: 0.06})
    slow = dataclasses.replace(measured(0.05), setup_s=30.0)
    stage.records[1] = dataclasses.replace(stage.records[1], measurement=slow)
    asked = []
    checked_by(monkeypatch, stage, lambda plan: asked.append(plan) or Ok())
    found = Decision(stage, throughput, memory_bytes=1 << 40)
    kept = found.seconds()
    assert found.insure_leader()
    assert found.seconds() < kept - 29.0
    # Nothing is left to find out, and the final does not ask again.
    assert not found.insure_leader()
    assert found.decide(stage.records[0], "all was tried")[0] == leader
    assert asked == [leader]
    assert stage.alone


def test_leader_that_falls_in_its_early_check_is_out(monkeypatch):
    whole = Choice("compile", {"scope": "whole"})
    leader = (*BF16, whole)
    stage = Stage({BASE: 0.1, leader: 0.05, THREAD: 0.06})
    wrong = Reject(Code.NUMERICS, "wrong", "drop it")
    checked_by(monkeypatch, stage, lambda plan: wrong if plan == leader else Ok())
    found = Decision(stage, throughput, memory_bytes=1 << 40)
    assert found.insure_leader()
    assert stage.best_first()[0].choices == THREAD
    # One thread compiles nothing: its check may wait.
    assert not found.insure_leader()


def test_early_check_that_is_broken_off_ends_the_trials(monkeypatch):
    whole = Choice("compile", {"scope": "whole"})
    stage = Stage({BASE: 0.1, (*BF16, whole): 0.05})

    def check(plan):
        raise Failure(Code.BUDGET, "no time is left")

    checked_by(monkeypatch, stage, check)
    assert not Decision(stage, throughput, memory_bytes=1 << 40).insure_leader()
    assert stage.refused == []


@pytest.mark.parametrize(("memory_bytes", "alone"), [(1 << 40, False), (1, True)])
def test_early_check_runs_without_the_baseline_where_memory_is_short(
    monkeypatch, memory_bytes, alone
):
    leader = (*BF16, Choice("compile", {"scope": "whole"}))
    stage = Stage({BASE: 0.1, leader: 0.05})
    stage.records = [
        dataclasses.replace(
            record,
            measurement=dataclasses.replace(
                record.measurement, peak_memory_bytes=1 << 30
            ),
        )
        for record in stage.records
    ]
    checked_by(monkeypatch, stage, lambda plan: Ok())
    assert Decision(stage, throughput, memory_bytes).insure_leader()
    assert stage.alone is alone
