"""Runs in turns: who begins, how long turns are, and how many steps all make."""

import pytest

from drivetrain.quickstart import _pair
from drivetrain.quickstart._pair import train_in_turns


class Clock:
    """Goes on by what steps take."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s


class FakeRun:
    """A run whose steps take what a function of their number says."""

    def __init__(self, clock, story, name, step_s):
        self._clock, self._story, self._name = clock, story, name
        self._step_s = step_s
        self.first_step_s = step_s(0)
        self.times_s, self.losses = [], [5.0]

    def train(self, steps):
        self._story.append(self._name)
        for _ in range(steps):
            took_s = self._step_s(len(self.losses))
            self._clock.now_s += took_s
            self.times_s.append(took_s)
            self.losses.append(5.0)

    def complete(self, steps):
        self.losses += [5.0] * (steps - len(self.losses))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_pair, "time", clock)
    return clock


def train(clock, *step_s, steps=None, limit_s=120.0):
    story, told, began_s = [], [], clock.now_s
    names = zip("ab", step_s, strict=False)
    runs = [FakeRun(clock, story, name, one) for name, one in names]
    turns = train_in_turns(
        runs,
        steps=steps,
        limit_s=limit_s,
        began_s=began_s,
        on_turn=lambda made, total: told.append((made, total)),
    )
    return runs, turns, story, told, clock.now_s - began_s


def test_each_run_begins_as_often_as_the_other(clock):
    runs, turns, story, told, _ = train(clock, lambda _: 0.5, lambda _: 0.4, steps=12)
    assert "".join(story).startswith("abbaab")
    assert [len(run.losses) for run in runs] == [12, 12]
    # The first step compiles, and is in no turn.
    assert [sum(map(len, one)) for one in turns] == [11, 11]
    assert len(turns[0]) == len(turns[1])
    assert told[-1] == (12, 12)


@pytest.mark.parametrize("step_s", [0.05, 0.7, 3.0])
def test_as_many_steps_are_made_as_the_limit_allows(clock, step_s):
    runs, _, _, _, took_s = train(clock, lambda _: step_s, lambda _: step_s)
    assert took_s <= 120.0
    assert len(runs[0].losses) == 400 or took_s > 90.0


def test_machine_that_becomes_faster_makes_more_steps(clock):
    def step_s(number):
        return 8.0 if number < 3 else 0.4

    runs, *_, took_s = train(clock, step_s)
    assert len(runs[0].losses) > 100
    assert took_s <= 120.0


def test_machine_that_becomes_slower_makes_fewer(clock):
    def step_s(number):
        return 0.4 if number < 30 else 6.0

    runs, *_, told, took_s = train(clock, step_s)
    assert told[0][1] > 100
    assert len(runs[0].losses) < 60
    assert took_s <= 120.0


def test_steps_that_are_asked_for_are_made_however_long_they_take(clock):
    runs, *_ = train(clock, lambda _: 40.0, steps=9)
    assert len(runs[0].losses) == 9


def test_very_slow_steps_are_made_all_the_same(clock):
    runs, *_ = train(clock, lambda _: 90.0, lambda _: 80.0)
    assert len(runs[0].losses) == 4
