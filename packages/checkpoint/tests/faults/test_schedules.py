"""Trainings that are killed, signalled, starved of storage and damaged again and again."""

import pytest

from faults.schedules import DAMAGES, ENDS, OUTAGES, schedule_of, try_schedule


@pytest.mark.parametrize("seed", range(3))
def test_random_schedule_loses_nothing(library, tally, seed):
    _, problems = try_schedule(seed, library)
    tally.add("random schedule", problems)
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 23))
def test_more_random_schedules_lose_nothing(library, tally, seed):
    _, problems = try_schedule(seed, library)
    tally.add("random schedule", problems)
    assert problems == []


@pytest.mark.slow
def test_schedule_of_new_processes_loses_nothing(library, tally):
    _, problems = try_schedule(1, library, fresh=True)
    tally.add("random schedule, new processes", problems)
    assert problems == []


def test_schedules_have_all_that_can_happen():
    lives = [life for seed in range(400) for life in schedule_of(seed)[0]]
    assert {life.end for life in lives} == set(ENDS)
    assert {life.outage for life in lives} == set(OUTAGES)
    assert {life.damage for life in lives} == set(DAMAGES)
    assert {life.world_size for life in lives} == {1, 2, 3, 4}
    assert schedule_of(7) == schedule_of(7)
