"""Traffic that drops is told from traffic that pauses, by what was usual."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_elastic.decisions.traffic import (
    TrafficConfig,
    TrafficLevel,
    TrafficState,
    judge_traffic,
)

BAD = {TrafficLevel.DROPPED, TrafficLevel.SILENT}
TICK_S = 0.01


class Port:
    """A counter that is read 100 times a second, and judged 20 times a second."""

    def __init__(self, **config):
        self.state = TrafficState(config=TrafficConfig(**config))
        self.now_s = self.sent = 0.0
        self.verdict = None

    def run(self, for_s, rate, *, is_read=True):
        """Sends at `rate(seconds since this call)`; returns when what was judged."""
        judged = []
        for tick in range(round(for_s / TICK_S)):
            self.sent += rate(tick * TICK_S) * TICK_S
            self.now_s += TICK_S
            self.state.add(self.now_s, self.sent if is_read else None)
            if tick % 5 == 0:
                self.verdict = judge_traffic(self.now_s, self.state)
                judged.append((tick * TICK_S, self.verdict.level))
        return judged


def bursts(period_s, burst_s, height=1e9):
    return lambda at_s: height if at_s % period_s < burst_s else 0.0


def first_bad_s(judged):
    return next((at_s for at_s, level in judged if level in BAD), None)


@pytest.mark.parametrize(
    ("period_s", "burst_s"), [(0.05, 0.05), (0.1, 0.03), (0.3, 0.1), (0.5, 0.12)]
)
def test_silence_is_flagged_within_a_second(period_s, burst_s):
    port = Port()
    assert first_bad_s(port.run(20.0, bursts(period_s, burst_s))) is None
    assert first_bad_s(port.run(3.0, lambda _: 0.0)) <= 1.0
    assert port.verdict.level == TrafficLevel.SILENT
    assert port.verdict.rate == 0.0
    assert port.verdict.usual > 0


@pytest.mark.parametrize("left", [0.1, 0.3, 0.4])
@pytest.mark.parametrize("period_s", [0.05, 0.1, 0.2])
def test_drop_is_flagged_within_a_second(period_s, left):
    port = Port()
    port.run(20.0, bursts(period_s, period_s / 2))
    judged = port.run(3.0, bursts(period_s, period_s / 2, left * 1e9))
    assert first_bad_s(judged) <= 1.0
    assert port.verdict.level == TrafficLevel.DROPPED
    assert "usual are" in port.verdict.reason


def test_pause_between_long_steps_is_usual_until_a_burst_is_overdue():
    port = Port()
    assert first_bad_s(port.run(60.0, bursts(5.0, 1.0))) is None
    flagged_s = first_bad_s(port.run(20.0, lambda _: 0.0))
    # 4 s without traffic were usual, and have just passed.
    assert 0.5 <= flagged_s <= 4.5


def test_drop_lasts_until_traffic_is_back_and_is_never_usual():
    port = Port()
    port.run(20.0, bursts(0.2, 0.1))
    port.run(150.0, lambda _: 0.0)
    assert port.verdict.level == TrafficLevel.SILENT
    judged = port.run(10.0, bursts(0.2, 0.1))
    back_s = next(at_s for at_s, level in judged if level == TrafficLevel.USUAL)
    assert back_s <= 2.5
    assert first_bad_s([one for one in judged if one[0] > back_s]) is None
    assert first_bad_s(port.run(2.0, lambda _: 0.0)) <= 1.0


def test_nothing_is_flagged_before_enough_is_known():
    port = Port()
    judged = port.run(9.5, lambda at_s: 1e9 if at_s < 3 else 0.0)
    assert {level for _, level in judged} == {TrafficLevel.LEARNING}
    assert "of 10 s are known" in port.verdict.reason


def test_port_without_traffic_is_as_usual():
    port = Port()
    assert first_bad_s(port.run(30.0, lambda _: 0.0)) is None
    assert port.verdict.level == TrafficLevel.USUAL
    # Traffic that comes later is no drop either.
    assert first_bad_s(port.run(10.0, bursts(0.2, 0.1))) is None


def test_pause_of_the_job_is_no_drop_and_what_is_usual_is_kept():
    port = Port()
    port.run(20.0, bursts(0.3, 0.1))
    port.state.pause()
    judged = port.run(30.0, lambda _: 0.0)
    assert {level for _, level in judged} == {TrafficLevel.PAUSED}
    port.state.resume()
    # It goes on in the middle of a step.
    assert first_bad_s(port.run(10.0, lambda at: bursts(0.3, 0.1)(at + 0.15))) is None
    assert first_bad_s(port.run(2.0, lambda _: 0.0)) <= 1.0


def test_world_that_sends_less_is_learned_anew():
    port = Port()
    port.run(20.0, bursts(0.2, 0.1))
    port.state.restart()
    assert first_bad_s(port.run(30.0, bursts(0.2, 0.1, 1e8))) is None
    assert port.verdict.level == TrafficLevel.USUAL


def test_counters_that_are_missing_are_no_silence():
    port = Port()
    port.run(20.0, bursts(0.2, 0.1))
    judged = port.run(5.0, lambda _: 0.0, is_read=False)
    assert first_bad_s(judged) is None
    assert port.verdict.level == TrafficLevel.UNSEEN
    assert first_bad_s(port.run(10.0, bursts(0.2, 0.1))) is None


def test_counter_that_begins_anew_and_clock_that_goes_back_do_no_harm():
    port = Port()
    port.run(20.0, bursts(0.2, 0.1))
    port.sent = 0.0
    assert first_bad_s(port.run(5.0, bursts(0.2, 0.1))) is None
    port.state.add(port.now_s - 3600.0, port.sent + 1e12)
    port.state.add(float("nan"), 1.0)
    assert first_bad_s(port.run(5.0, bursts(0.2, 0.1))) is None
    assert first_bad_s(port.run(2.0, lambda _: 0.0)) <= 1.0


@settings(max_examples=8, deadline=None)
@given(
    period_s=st.floats(0.05, 0.8),
    share=st.floats(0.1, 0.9),
    jitter=st.floats(0.0, 0.2),
    seed=st.integers(0, 1000),
)
def test_uneven_steps_are_never_flagged(period_s, share, jitter, seed):
    dice = random.Random(seed)
    ends, at_s = [], 0.0
    while at_s < 35.0:
        length_s = period_s * (1 + jitter * dice.uniform(-1, 1))
        # Now and then a step takes somewhat longer: the garbage collector.
        length_s += 0.1 * (dice.random() < 0.01)
        ends.append((at_s + length_s * (1 - share), at_s + length_s))
        at_s += length_s
    steps = iter(ends)
    begin_s, end_s = next(steps)

    def rate(now_s):
        nonlocal begin_s, end_s
        while now_s >= end_s:
            begin_s, end_s = next(steps)
        return 1e9 if now_s >= begin_s else 0.0

    assert first_bad_s(Port().run(30.0, rate)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"bucket_s": 0.0},
        {"learn_s": float("nan")},
        {"learn_s": 0.1},
        {"memory_s": 5.0},
        {"drop": 1.5},
        {"silence": 0.6},
        {"slack": 0.5},
        {"unseen_s": -1.0},
    ],
)
def test_config_that_cannot_be_is_refused(wrong):
    with pytest.raises(ProgramError, match="got"):
        TrafficConfig(**wrong)
