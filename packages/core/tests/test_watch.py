"""The promise of a plan beside the first steps of training."""

from __future__ import annotations

import logging

import pytest

from drivetrain_core import Plan, _watch
from drivetrain_core._watch import Promise, Watch


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests wind on."""
    now = [0.0]
    monkeypatch.setattr(_watch.time, "perf_counter", lambda: now[0])
    return now


def drive(watch, clock, step_s, pauses=()):
    """Steps until the watch has seen enough; returns the number of steps."""
    number = 1
    while watch.step():
        clock[0] += step_s + (3.0 if number in pauses else 0.0)
        number += 1
    return number


def test_watch_sees_the_median_from_begin_to_begin(clock):
    watch = Watch(0.1)
    # Warm-up and an evaluation now and then do not count.
    drive(watch, clock, 0.1, pauses=(1, 2, 20, 40))
    assert watch.promise.seen_s == pytest.approx(0.1)
    assert watch.promise.ratio == pytest.approx(1.0)


def test_watch_ends_and_says_so_once(clock, caplog):
    watch = Watch(0.1)
    with caplog.at_level(logging.WARNING):
        drive(watch, clock, 0.12)
    assert len(caplog.records) == 1
    assert "20% more than the plan promised" in caplog.text


def test_watch_is_silent_when_the_promise_is_kept(clock, caplog):
    with caplog.at_level(logging.WARNING):
        drive(Watch(0.1), clock, 0.104)
        drive(Watch(0.1), clock, 0.05)
    assert not caplog.records


@pytest.mark.parametrize("value", [None, "fast", 0, -1.0])
def test_plan_without_a_promise_is_not_watched(value):
    measured = {} if value is None else {"step_ms": value}
    assert Watch.of(Plan(measured=measured)) is None


def test_promise_of_a_plan_is_its_step():
    assert Watch.of(Plan(measured={"step_ms": 250.0}))._promised_s == 0.25


def test_training_is_held_to_its_plan(built):
    accelerated = built()
    assert accelerated.promise is None
    plan = Plan(measured={"step_ms": 1e6})
    accelerated.plan = plan
    accelerated.hold_to_promise()
    batches = iter(accelerated.batches())
    for _ in range(60):
        accelerated.train_step(next(batches))
    assert isinstance(accelerated.promise, Promise)
    assert accelerated.promise.ratio < 1.0
    assert accelerated.train_step.watch is None
