import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_elastic.decisions.stragglers import (
    StragglerConfig,
    Window,
    judge_stragglers,
    score_window,
)

CONFIG = StragglerConfig()


def windows_of(*sections, num=5):
    """Returns windows in which the workers w0, w1... take these times to compute."""
    steps = {f"w{at}": {"compute": s} for at, s in enumerate(sections)}
    return [Window(number, steps) for number in range(num)]


def names(windows, config=CONFIG):
    return [one.worker for one in judge_stragglers(windows, config)]


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 64])
def test_the_slow_rank_is_named_and_no_other(num_ranks):
    times = [0.1 + 0.001 * (at % 3) for at in range(num_ranks - 1)]
    assert names(windows_of(*times, 0.2)) == [f"w{num_ranks - 1}"]


def test_equal_ranks_are_no_stragglers():
    assert names(windows_of(0.1, 0.1, 0.1, 0.1)) == []


def test_a_rank_that_waits_for_a_slow_one_is_not_blamed():
    # All take 0.2 s for the step; only one of them computes for all that time.
    steps = {f"w{at}": {"compute": 0.1} for at in range(3)}
    steps["slow"] = {"compute": 0.2}
    assert names([Window(number, steps) for number in range(5)]) == ["slow"]


def test_a_hiccup_is_none():
    fast, hiccup = windows_of(0.1, 0.1, 0.1), windows_of(0.1, 0.1, 0.5)
    assert names([*fast[:3], *hiccup[:2]]) == []
    assert names([*fast[:2], *hiccup[:3]]) == ["w2"]


def test_only_the_last_windows_count():
    slow, fast = windows_of(0.1, 0.1, 0.5), windows_of(0.1, 0.1, 0.1)
    assert names([*slow, *fast[:3]]) == []


def test_what_takes_no_time_is_not_compared():
    assert names(windows_of(1e-5, 1e-5, 9e-4)) == []
    assert names(windows_of(0.0, 0.0, 0.1)) == ["w2"]


def test_lone_ranks_are_compared_with_nobody():
    assert score_window({"a": 1.0}) == {}
    assert names(windows_of(1.0)) == []


@pytest.mark.parametrize("lie", [math.nan, math.inf, -1.0])
def test_times_that_are_none_neither_blame_nor_shield(lie):
    assert names(windows_of(0.1, 0.1, lie)) == []
    assert names(windows_of(0.1, 0.1, lie, 0.2)) == ["w3"]


def test_a_section_of_ones_own_is_named():
    steps = {f"w{at}": {"compute": 0.1, "data": 0.01} for at in range(3)}
    steps["w1"] = {"compute": 0.1, "data": 0.5}
    (found,) = judge_stragglers([Window(n, steps) for n in range(3)], CONFIG)
    assert (found.worker, found.section) == ("w1", "data")
    assert "'data'" in found.reason
    assert found.excess_s == pytest.approx(0.49)


@pytest.mark.parametrize("samples", [(2, 1, 1), (3, 3, 2), (1, 1, 0)])
def test_a_rank_with_more_samples_is_no_straggler(samples):
    # What each sample takes, and what a step takes without any.
    times = {f"w{at}": {"compute": 0.02 + 0.1 * n} for at, n in enumerate(samples)}
    given = {f"w{at}": float(n) for at, n in enumerate(samples)}
    windows = [Window(number, times, given) for number in range(5)]
    assert names(windows) == []


def test_a_slow_rank_is_found_whatever_samples_the_others_have():
    given = {"w0": 3.0, "w1": 2.0, "w2": 2.0, "w3": 3.0}
    times = {worker: {"compute": 0.1 * n} for worker, n in given.items()}
    times["w3"] = {"compute": 0.6}
    windows = [Window(number, times, given) for number in range(5)]
    assert names(windows, StragglerConfig(score=3.0)) == ["w3"]


def test_the_slowest_comes_first():
    found = judge_stragglers(windows_of(0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.4), CONFIG)
    assert [one.worker for one in found] == ["w6", "w5"]


@pytest.mark.parametrize(
    "fields",
    [
        {"ratio": 1.0},
        {"ratio": math.nan},
        {"score": -1.0},
        {"num_slow": 0},
        {"num_slow": 6, "num_windows": 5},
    ],
)
def test_limits_out_of_range_are_refused(fields):
    with pytest.raises(ProgramError):
        StragglerConfig(**fields)


@pytest.mark.slow
@given(
    noise=st.lists(st.floats(0.97, 1.03), min_size=5 * 8, max_size=5 * 8),
    slow=st.integers(0, 7),
    factor=st.floats(1.45, 5.0),
    base_s=st.floats(0.01, 100.0),
)
def test_one_slow_rank_of_eight_is_found_in_noise(noise, slow, factor, base_s):
    windows = []
    for number in range(5):
        steps = {
            f"w{at}": {
                "compute": base_s
                * noise[number * 8 + at]
                * (factor if at == slow else 1)
            }
            for at in range(8)
        }
        windows.append(Window(number, steps))
    assert names(windows, StragglerConfig(score=4.0)) == [f"w{slow}"]


@given(noise=st.lists(st.floats(0.9, 1.1), min_size=5 * 8, max_size=5 * 8))
def test_noise_alone_blames_nobody(noise):
    windows = [
        Window(
            number,
            {f"w{at}": {"compute": noise[number * 8 + at]} for at in range(8)},
        )
        for number in range(5)
    ]
    assert names(windows) == []
