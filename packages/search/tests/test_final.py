"""The interval of a gain, and the turns in which two plans are measured."""

from __future__ import annotations

import contextlib
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import Choice, Code, Measurement
from drivetrain_search.final import (
    compare,
    fit_together,
    interval_of_sets,
    merge,
    run_in_turns,
    speedup_interval,
    step_interval,
)
from drivetrain_search.process.trial import Failure

TIMES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)
PLAN = (Choice("precision", {"dtype": "bf16_autocast"}),)


def measurement(*times, memory=0, flops=None, share=0.0):
    return Measurement(
        step_times_s=times,
        samples_per_step=4,
        peak_memory_bytes=memory,
        flops_per_step=flops,
        data_share=share,
        optimizer_share=share,
    )


@settings(deadline=None, max_examples=25)
@given(TIMES, TIMES)
def test_interval_holds_the_ratio_of_medians(baseline, plan):
    low, high = speedup_interval(measurement(*baseline), measurement(*plan))
    ratio = statistics.median(baseline) / statistics.median(plan)
    assert low <= ratio * (1 + 1e-12)
    assert ratio <= high * (1 + 1e-12)
    assert low >= min(baseline) / max(plan) * (1 - 1e-12)
    assert high <= max(baseline) / min(plan) * (1 + 1e-12)


@settings(deadline=None, max_examples=25)
@given(TIMES, TIMES, st.integers(-3, 3))
def test_interval_scales_with_the_plan(baseline, plan, power):
    # A power of two scales without rounding.
    factor = 2.0**power
    before = measurement(*baseline)
    low, high = speedup_interval(before, measurement(*plan))
    scaled = speedup_interval(before, measurement(*[time * factor for time in plan]))
    assert scaled == pytest.approx((low / factor, high / factor), rel=1e-12)


@settings(deadline=None, max_examples=20)
@given(TIMES, st.integers(0, 3))
def test_interval_of_a_plan_with_itself_holds_one(times, seed):
    same = measurement(*times)
    low, high = speedup_interval(same, same, seed=seed)
    assert low <= 1.0 <= high
    assert speedup_interval(same, same, seed=seed) == (low, high)


def test_interval_is_of_the_objective():
    slow, fast = measurement(2.0, 2.0), measurement(1.0, 1.0)

    def squared(measured):
        return measured.samples_per_s**2

    assert speedup_interval(slow, fast, squared) == (4.0, 4.0)


@settings(deadline=None, max_examples=25)
@given(TIMES)
def test_step_interval_holds_the_median(times):
    low, high = step_interval(measurement(*times))
    assert min(times) <= low <= statistics.median(times) * (1 + 1e-12)
    assert statistics.median(times) <= high * (1 + 1e-12) <= max(times) * (1 + 1e-11)


def test_interval_narrows_with_more_steps():
    few, many = [1.0, 1.1, 1.2], [1.0, 1.1, 1.2] * 30

    def width(times):
        low, high = speedup_interval(measurement(*times), measurement(*times))
        return high - low

    assert width(many) < width(few)


def test_merge_keeps_all_steps_and_the_highest_peak():
    whole = merge(
        [
            measurement(1.0, 2.0, memory=5, flops=7, share=0.2),
            measurement(3.0, memory=9, flops=7, share=0.4),
        ]
    )
    assert whole.step_times_s == (1.0, 2.0, 3.0)
    assert whole.peak_memory_bytes == 9
    assert whole.flops_per_step == 7
    assert whole.data_share == whole.optimizer_share == pytest.approx(0.3)


@pytest.mark.parametrize(("memory", "fits"), [(1000, True), (199, False), (235, False)])
def test_fit_together_leaves_room(memory, fits):
    halves = measurement(1.0, memory=100), measurement(1.0, memory=100)
    assert fit_together(halves, memory_bytes=memory) is fits


class Runner:
    """Answers as a `TrialRunner` whose baseline takes 2 s and whose plan takes 1 s."""

    def __init__(self, fails=False):
        self.log = []
        self.fails = fails

    @contextlib.contextmanager
    def open(self, choices, *, look, deadline):
        assert (look, deadline) == (None, 99.0)
        name = "plan" if choices else "base"
        self.log.append(f"open {name}")
        yield Session(self, name)
        self.log.append(f"close {name}")


class Session:
    def __init__(self, runner, name):
        self.runner, self.name = runner, name

    def measure(self, min_steps, min_seconds):
        self.runner.log.append(self.name)
        if self.runner.fails:
            raise Failure(Code.HANG, "no answer")
        return measurement(*[2.0 if self.name == "base" else 1.0] * min_steps)


def compared(runner, together):
    before, after = run_in_turns(
        runner,
        [(), PLAN],
        turns=2,
        min_steps=3,
        min_seconds=0.0,
        deadline=99.0,
        together=together,
    )
    return compare(before, after)


def test_turns_alternate_so_that_a_drift_cancels_out():
    runner = Runner()
    result = compared(runner, together=True)
    assert [e for e in runner.log if " " not in e] == ["base", "plan", "plan", "base"]
    assert runner.log[:2] == ["open base", "open plan"]
    assert runner.log[-2:] == ["close plan", "close base"]
    assert (result.speedup, result.low, result.high) == (2.0, 2.0, 2.0)
    assert len(result.baseline.step_times_s) == len(result.plan.step_times_s) == 6


def test_turns_that_do_not_fit_together_open_one_plan_at_a_time():
    runner = Runner()
    result = compared(runner, together=False)
    assert result.speedup == 2.0
    assert runner.log[:6] == [
        *("open base", "base", "close base"),
        *("open plan", "plan", "close plan"),
    ]


def test_failure_in_a_turn_is_passed_on():
    with pytest.raises(Failure, match="no answer"):
        compared(Runner(fails=True), together=True)


@pytest.mark.parametrize("pairs", range(1, 6))
def test_interval_of_sets_narrows_with_more_of_them(pairs):
    few, many = [1.1, 1.3] * pairs, [1.1, 1.3] * (pairs + 1)
    low, high = interval_of_sets(few)
    nearer_low, nearer_high = interval_of_sets(many)
    assert low < nearer_low < 1.2 < nearer_high < high
