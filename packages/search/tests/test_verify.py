"""The longer look at a winner: which runs it asks for, and what they decide."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest

from drivetrain_core import Choice, Code, Ok, Reject
from drivetrain_core.numerics.observation import Observation, ParameterUsage
from drivetrain_search.last_check import LastCheck
from drivetrain_search.process.trial import Failure
from drivetrain_search.verify import (
    passes_of_check,
    structure_of,
    verify,
)

LOW = Choice("precision", {"dtype": "bf16_params"})
FUSED = Choice("optimizer_impl", {"kind": "fused"})
WHOLE = Choice("compile", {"scope": "whole"})
GOOD = Observation(
    losses=(2.0, 1.5, 1.2, 1.1),
    norms={"w": 1.0},
    samples={"w": (0.6, 0.8)},
    moved=frozenset({"w"}),
    updates={"w": (0.1, 0.2)},
    journey={"w": (0.3, 0.4)},
)
STALLED = dataclasses.replace(GOOD, journey={"w": (0.01, 0.02)})
TURNED = dataclasses.replace(GOOD, samples={"w": (0.62, 0.784)})


class Runner:
    """Answers as a `TrialRunner`, with what is given for a plan."""

    def __init__(self, world_size=1, **seen):
        self.world_size = world_size
        self.seen = seen
        self.asked = []

    @contextlib.contextmanager
    def open(self, choices, *, look, deadline):
        assert deadline == 9.0
        names = "+".join(choice.name for choice in choices)
        self.asked.append((names, look.steps))
        answer = self.seen.get(names.replace("+", "_"), GOOD)
        if isinstance(answer, Failure):
            raise answer
        yield SimpleNamespace(observation=answer)


def test_verify_looks_at_the_structure_and_at_the_whole_plan():
    runner = Runner()
    answer = verify(runner, (LOW, WHOLE, FUSED), GOOD, deadline=9.0)
    assert isinstance(answer, Ok)
    structure, plan = "compile+optimizer_impl", "precision+compile+optimizer_impl"
    assert runner.asked == [(structure, 3), (plan, 4)]


@pytest.mark.parametrize("choices", [(), (LOW,), (WHOLE, FUSED)], ids=str)
def test_verify_needs_no_structure_that_a_trial_has_seen(choices):
    runner = Runner()
    assert isinstance(verify(runner, choices, GOOD, deadline=9.0), Ok)
    assert [steps for _, steps in runner.asked] == [4]


def test_verify_remembers_structures():
    runner, known = Runner(compile=TURNED), {}
    for _ in range(2):
        answer = verify(runner, (LOW, WHOLE), GOOD, deadline=9.0, structures=known)
        assert isinstance(answer, Reject)
    assert runner.asked == [("compile", 3)]
    assert list(known) == [(WHOLE,)]


def test_verify_needs_no_trajectory_where_there_was_time_for_the_first_steps_only():
    short = dataclasses.replace(GOOD, losses=GOOD.losses[:3], journey={})
    runner = Runner()
    assert isinstance(verify(runner, (LOW, WHOLE), short, deadline=9.0), Ok)
    assert runner.asked == [("compile", 3)]
    assert passes_of_check(short, structure_is_due=False) == 0


def test_check_makes_as_many_passes_as_its_looks():
    assert passes_of_check(GOOD, structure_is_due=False) == 5
    assert passes_of_check(GOOD, structure_is_due=True) == 9
    dropout = dataclasses.replace(GOOD, liveness=ParameterUsage(stir=0.1))
    assert passes_of_check(dropout, structure_is_due=True) == 13


def test_verify_finds_what_low_precision_hides():
    runner = Runner(compile=TURNED, precision_compile=TURNED)
    answer = verify(runner, (LOW, WHOLE), GOOD, deadline=9.0)
    assert answer.code is Code.NUMERICS
    assert answer.because.startswith("without its low precision, compile")
    assert "the gradient differs for w" in answer.because
    assert isinstance(verify(Runner(precision=TURNED), (LOW,), GOOD, deadline=9.0), Ok)


def test_verify_finds_what_only_a_trajectory_shows():
    answer = verify(Runner(precision=STALLED), (LOW,), GOOD, deadline=9.0)
    assert "of the baseline's way" in answer.because


AWAY = dataclasses.replace(GOOD, losses=(2.0, 1.5, 1.2, 1.1022))


@pytest.mark.parametrize(("last", "passes"), [(1.101, True), (1.1001, False)])
def test_verify_holds_a_chaotic_program_to_what_rounding_does_to_it(last, passes):
    chaotic = dataclasses.replace(GOOD, nudged=(2.0, 1.5, 1.2, last))
    runner = Runner(compile=AWAY)
    answer = verify(runner, (WHOLE,), GOOD, deadline=9.0, nudged=lambda: chaotic)
    assert isinstance(answer, Ok) == passes
    assert isinstance(verify(runner, (WHOLE,), GOOD, deadline=9.0), Reject)


def test_verify_asks_what_rounding_does_only_for_a_plan_that_is_too_far():
    def never():
        raise AssertionError

    assert isinstance(verify(Runner(), (WHOLE,), GOOD, deadline=9.0, nudged=never), Ok)


@pytest.mark.parametrize("code", [Code.MEMORY, Code.BUDGET])
def test_verify_where_the_program_does_not_run_again(code):
    def fails():
        raise Failure(code, "not a second time")

    def check():
        return verify(Runner(compile=AWAY), (WHOLE,), GOOD, deadline=9.0, nudged=fails)

    if code is Code.BUDGET:
        with pytest.raises(Failure, match="not a second time"):
            check()
        return
    # The plan is refused for its own numbers.
    answer = check()
    assert answer.code is Code.NUMERICS
    assert "the loss differs at step 4" in answer.because


def test_last_check_asks_once_what_rounding_does():
    chaotic = dataclasses.replace(GOOD, losses=(2.0, 1.5, 1.2, 1.101))
    asked = []

    class Program(Runner):
        @contextlib.contextmanager
        def open(self, choices, *, look, deadline):
            asked.append((choices, look.steps, look.nudges))
            seen = AWAY if choices else chaotic
            yield SimpleNamespace(observation=seen)

    trials = SimpleNamespace(
        reference=GOOD,
        deadline=9.0,
        records=[SimpleNamespace(choices=(), measurement=None)],
        runner=lambda choices: Program(),
        announce=lambda *_: None,
    )
    check = LastCheck(trials)
    for plan in ((WHOLE,), (FUSED,)):
        assert isinstance(check.verdict(SimpleNamespace(choices=plan)), Ok)
        assert check.passed(plan)
        assert not check.refused(plan)
    assert trials.reference.nudged == chaotic.losses
    # The second plan is held to the reference as it is known by then.
    assert asked == [((WHOLE,), 4, False), ((), 4, True), ((FUSED,), 4, False)]


def test_verify_makes_a_failure_a_reject():
    failure = Failure(Code.CRASH, "rank 0 was killed by SIGSEGV")
    answer = verify(Runner(compile=failure), (LOW, WHOLE), GOOD, deadline=9.0)
    assert answer.code is Code.CRASH
    assert "was killed by SIGSEGV" in answer.because


def test_verify_passes_on_that_the_deadline_passed():
    late = Failure(Code.BUDGET, "the budget of the search ended")
    with pytest.raises(Failure, match="BUDGET"):
        verify(Runner(compile=late), (LOW, WHOLE), GOOD, deadline=9.0)


def test_structure_averages_gradients_on_ranks():
    assert [c.name for c in structure_of((LOW, FUSED), 2)] == ["ddp", "optimizer_impl"]
    fsdp = Choice("fsdp", {"zero": 2, "shard_size": None})
    assert structure_of((LOW, fsdp), 2) == (fsdp,)
