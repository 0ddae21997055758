"""`kill -9` right before any call that changes storage."""

import itertools

import pytest

from faults.kills import VICTIMS, kill_at
from faults.stage import Stage

SHORT = [(1, victim, 2 + 13 * i) for i in range(3) for victim in VICTIMS]
SHORT += [(2, victim, 5 + 13 * i) for i in range(2) for victim in VICTIMS]


@pytest.mark.parametrize(("world_size", "victim", "index"), SHORT)
def test_kill_before_a_call_loses_nothing(
    tmp_path, library, tally, world_size, victim, index
):
    with Stage(tmp_path / "stage", library) as stage:
        problems = kill_at(stage, index, victim, world_size)
    tally.add(f"kill of {victim} at a call", problems)
    assert problems == []


@pytest.mark.faults
@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_kill_before_every_call_loses_nothing(
    tmp_path, library, tally, world_size, victim, offset
):
    wrong = []
    for index in itertools.count(1 + offset, 8):
        with Stage(tmp_path / f"stage{index}", library) as stage:
            problems = kill_at(stage, index, victim, world_size)
        if problems is None:
            break
        tally.add(f"kill of {victim} at a call", problems)
        wrong += [(index, problem) for problem in problems]
    assert index > 50
    assert wrong == []
