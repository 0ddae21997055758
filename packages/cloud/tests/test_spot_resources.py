"""Requests of workers follow what they use, and their number what they are worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_cloud.spot.worker_count import CountConfig, Speed, choose_count
from drivetrain_cloud.spot.worker_resources import (
    ResourceBounds,
    Resources,
    UseWindow,
    advise_resources,
)
from drivetrain_core import ProgramError

GIB = 1 << 30


def resources(cpus, gib):
    return Resources(cpus=cpus, memory_bytes=int(gib * GIB))


def use(cpus, gib, killed=False):
    memory_bytes = int(gib * GIB)
    return UseWindow(cpus=cpus, memory_bytes=memory_bytes, killed_for_memory=killed)


BOUNDS = ResourceBounds(least=resources(0.5, 0.5), most=resources(8, 16))


def advise(current, *windows):
    advice = advise_resources(current, windows, BOUNDS)
    found = advice.resources
    return found.cpus, found.memory_bytes / GIB, advice.reasons


def test_a_worker_that_was_killed_for_memory_gets_more_at_once():
    cpus, gib, reasons = advise(resources(1, 4), use(0.5, 4, killed=True))
    assert (cpus, gib) == (1, 6.0)
    assert reasons == ("memory 4.0 -> 6.0 GiB: killed for memory at 4.0 GiB",)


def test_a_worker_that_is_killed_at_its_bound_stays_there_and_says_so():
    _, gib, reasons = advise(resources(1, 16), use(0.5, 16, killed=True))
    assert gib == 16
    assert reasons == (
        "memory stays at its bound of 16.0 GiB: killed for memory at 16.0 GiB",
    )


def test_an_idle_worker_asks_for_less_only_after_several_windows():
    idle = use(0.4, 1.0)
    assert advise(resources(4, 8), *[idle] * 4) == (4, 8, ())
    cpus, gib, reasons = advise(resources(4, 8), *[idle] * 5)
    assert (cpus, gib) == (0.5, 1.25)
    assert len(reasons) == 2


def test_one_busy_window_keeps_what_was_asked_for():
    assert advise(resources(4, 8), *[use(0.4, 1.0)] * 4, use(3.9, 7.0))[0] == 4


def test_a_worker_that_uses_all_it_may_gets_more():
    assert advise(resources(2, 8), *[use(1.99, 7)] * 5)[0] == 3.0


def test_memory_that_comes_near_to_the_request_grows_before_the_worker_is_killed():
    assert advise(resources(1, 4), use(0.5, 3.9))[1] == 4.875


def test_nothing_known_changes_nothing():
    assert advise(resources(2, 4)) == (2, 4, ())


NUMBERS = st.floats(0, 100, allow_nan=False)
WINDOWS = st.lists(st.builds(use, NUMBERS, NUMBERS, st.booleans()), max_size=8)


@given(st.floats(0.5, 8), st.floats(0.5, 16), WINDOWS)
def test_advice_is_within_its_bounds_and_has_reasons(cpus, gib, windows):
    current = resources(cpus, gib)
    advice = advise_resources(current, windows, BOUNDS)
    assert BOUNDS.least.cpus <= advice.resources.cpus <= BOUNDS.most.cpus
    least, most = BOUNDS.least.memory_bytes, BOUNDS.most.memory_bytes
    assert least <= advice.resources.memory_bytes <= most
    assert advice.reasons or advice.resources == current
    if any(window.killed_for_memory for window in windows):
        assert advice.resources.memory_bytes >= current.memory_bytes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"least": resources(9, 1)}, "cpus needs 0 < least <= most"),
        ({"least": resources(1, 0)}, "memory_bytes needs"),
        ({"headroom": 0.9}, "headroom must be"),
        ({"deadband": 1.0}, "deadband must be"),
    ],
)
def test_bounds_that_contradict_themselves_are_refused(fields, words):
    given_ = {"least": resources(1, 1), "most": resources(8, 8), **fields}
    with pytest.raises(ProgramError, match=words):
        ResourceBounds(**given_)


def speeds(values, now_s=0.0):
    return {
        number: Speed(samples_per_s=float(value), steps=50, measured_s=now_s)
        for number, value in values.items()
    }


COUNT = CountConfig(least=2, most=6)


def chosen(current, values, now_s=0.0, config=COUNT, **prices):
    return choose_count(now_s, current, speeds(values), config, **prices).workers


def test_a_job_that_scales_grows_to_its_bound():
    values = {}
    workers = 2
    seen = [workers]
    for _ in range(8):
        values[workers] = 100 * workers
        workers = chosen(workers, values)
        seen.append(workers)
    assert seen == [2, 3, 4, 5, 6, 6, 6, 6, 6]


def test_a_job_that_stops_scaling_goes_back_and_stays():
    true = {2: 200, 3: 295, 4: 380, 5: 390, 6: 395}
    values, workers, seen = {}, 2, []
    for _ in range(8):
        values[workers] = true[workers]
        workers = chosen(workers, values)
        seen.append(workers)
    assert seen == [3, 4, 5, 4, 4, 4, 4, 4]


def test_a_number_that_is_not_measured_yet_stays():
    assert chosen(3, {2: 200}) == 3
    few = {3: Speed(samples_per_s=1.0, steps=3, measured_s=0.0)}
    assert choose_count(0.0, 3, few, COUNT).workers == 3


def test_a_measurement_that_is_too_old_is_made_again():
    true = {2: 200, 3: 205}
    assert chosen(2, true) == 2
    later = COUNT.valid_s + 1
    old = {**speeds(true), 2: speeds({2: 200}, later)[2]}
    assert choose_count(later, 2, old, COUNT).workers == 3


def test_what_a_sample_costs_bounds_the_number_of_workers():
    config = CountConfig(least=1, most=4, min_marginal=0.0, max_cost_ratio=1.2)
    true = {1: 100, 2: 150, 3: 160}
    assert chosen(2, true, config=config) == 1
    assert chosen(1, true, config=config) == 1
    dear = choose_count(
        0.0, 1, speeds(true), config, worker_price=1.0, fixed_price=10.0
    )
    assert dear.workers == 2


def test_a_number_out_of_bounds_comes_back():
    assert chosen(1, {}) == 2
    assert chosen(9, {}) == 6


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -5.0, 0.0])
def test_what_is_no_speed_is_no_reason_to_pay_for_more(wrong):
    assert chosen(3, {3: wrong}) == 3
    assert chosen(3, {2: 100.0, 3: wrong}) == 3
    assert chosen(3, {2: wrong, 3: 100.0, 4: 150.0}) == 4
    assert chosen(3, {3: 100.0, 4: 150.0}, worker_price=0.0) == 4


@pytest.mark.parametrize("price", [float("nan"), float("inf"), -1.0])
def test_what_is_no_price_is_refused(price):
    for name in ("worker_price", "fixed_price"):
        with pytest.raises(ProgramError, match="prices must be numbers from 0"):
            chosen(3, {3: 100.0}, **{name: price})


def test_what_nobody_can_have_used_changes_nothing():
    for cpus, memory in ((float("nan"), 1), (float("inf"), 1), (-1.0, 1), (0.1, -1)):
        window = UseWindow(cpus=cpus, memory_bytes=memory)
        advice = advise_resources(resources(2, 4), [window] * 6, BOUNDS)
        assert (advice.resources, advice.reasons) == (resources(2, 4), ())


def test_a_job_without_any_speed_does_not_divide_by_nothing():
    assert chosen(3, {2: 0, 3: 0}) in {2, 3, 4}


@pytest.mark.parametrize(
    "fields",
    [
        {"least": 0, "most": 2},
        {"least": 3, "most": 2},
        {"least": 1, "most": 4, "unit": 2},
        {"least": 1, "most": 2, "min_marginal": 2.0},
        {"least": 1, "most": 2, "max_cost_ratio": 0.5},
    ],
)
def test_counts_that_contradict_themselves_are_refused(fields):
    with pytest.raises(ProgramError):
        CountConfig(**fields)
