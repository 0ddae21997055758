"""Random changes of the world in mid-epoch: which samples are lost or read twice."""

import random
from collections import Counter

from torch.distributed.elastic.utils.data import (
    ElasticDistributedSampler as TorchSampler,
)

from drivetrain_elastic import ElasticDistributedSampler
from drivetrain_testing import Row

_NUM_SAMPLES, _BATCH = 1003, 8


def sampler(quick):
    """Schedules of resizes and kills in virtual time, of worlds of 1 to 64 ranks."""
    num_schedules = 300 if quick else 10_000
    lost = repeated = num_changes = 0
    for seed in range(num_schedules):
        read, changes = schedule(random.Random(seed))
        lost += _NUM_SAMPLES - len(read)
        repeated += read.total() - len(read)
        num_changes += changes
    theirs = of_torch()
    return Row(
        figure=f"{lost} lost, {repeated} read twice in {num_schedules} epochs with "
        f"{num_changes} changes (torch's elastic sampler, 4 to 3 ranks: "
        f"{_NUM_SAMPLES - len(theirs)} lost, {theirs.total() - len(theirs)} twice)",
        holds=lost == repeated == 0,
        proven_on="simulation",
    )


def schedule(dice):
    """Reads one epoch; returns how often each sample was trained on, and the changes.

    In a step each rank reads a batch. A step counts when all ranks have made it: a kill
    in mid-step throws it away, on all of them.
    """
    state, read, num_changes = None, Counter(), 0
    seed = dice.randrange(1 << 30)
    while True:
        world = dice.randint(1, 64)
        members = [
            ElasticDistributedSampler(
                range(_NUM_SAMPLES), world, rank, seed=seed, even=False
            )
            for rank in range(world)
        ]
        for one in members if state else ():
            one.load_state_dict(state)
        passes = [iter(one) for one in members]
        for _ in range(dice.randint(0, 6)):
            batches = [take(it, _BATCH) for it in passes]
            if dice.random() < 0.1:
                break  # somebody died: nobody has made this step
            samples = [index for batch in batches for index in batch]
            read.update(samples)
            for one in members:
                one.advance(len(samples))
        state = members[dice.randrange(world)].state_dict()
        num_changes += 1
        if state["position"] == _NUM_SAMPLES:
            return read, num_changes


def take(it, num):
    return [index for _, index in zip(range(num), it, strict=False)]


def of_torch():
    """What torch's own elastic sampler trains on when four ranks become three."""
    read, start = Counter(), 0
    for world, num_steps in ((4, 15), (3, 1000)):
        members = [
            TorchSampler(range(_NUM_SAMPLES), world, rank, start_index=start)
            for rank in range(world)
        ]
        passes = [iter(one) for one in members]
        for _ in range(num_steps):
            batches = [take(it, _BATCH) for it in passes]
            if not any(batches):
                break
            read.update(index for batch in batches for index in batch)
        start += world * num_steps * _BATCH
    return read


if __name__ == "__main__":
    print(sampler(False).figure)
