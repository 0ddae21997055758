"""`kill -9` at random moments, in the middle of copies and writes of several megabytes."""

import random
import time

import pytest

from faults.kills import VICTIMS, Run
from faults.stage import Stage
from faults.state import LARGE, SMALL

NUM_SAVES = 12


def random_kill(stage, seed):
    """Kills someone at some moment; returns who it was, and what is wrong after it."""
    moment = random.Random(seed)
    victim = moment.choice(VICTIMS)
    world_size = moment.choice([1, 1, 2])
    sizes = moment.choice([LARGE, LARGE, SMALL])
    run = Run(stage, victim, world_size, sizes)
    if moment.random() < 0.5:
        run.arm(moment.randrange(1, 80))
        run.trainers.tell("run", 1, NUM_SAVES)
        ended = run.listen(lambda: victim != "daemon" and stage.control["hits"])
    else:
        run.trainers.tell("run", 1, NUM_SAVES)
        run.listen(lambda: run.saved)
        until = time.monotonic() + moment.uniform(0, 0.12)
        ended = run.listen(lambda: time.monotonic() > until)
        run.kill()
    if victim == "daemon" and not ended:
        run.listen(lambda: False)
    stage.control.disarm()
    return f"kill of {victim} at random", run.aftermath()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_kill_at_random_loses_nothing(tmp_path, library, tally, seed):
    with Stage(tmp_path / "stage", library) as stage:
        kind, problems = random_kill(stage, seed)
    tally.add(kind, problems)
    assert problems == []


@pytest.mark.faults
@pytest.mark.parametrize("batch", range(24))
def test_kill_at_very_many_random_moments_loses_nothing(
    tmp_path, library, tally, batch
):
    wrong = []
    for number in range(50):
        seed = 100 + 50 * batch + number
        with Stage(tmp_path / f"stage{seed}", library) as stage:
            kind, problems = random_kill(stage, seed)
        tally.add(kind, problems)
        wrong += [(seed, kind, problem) for problem in problems]
    assert wrong == []
