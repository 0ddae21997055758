"""A launcher that tries every tactic in turns, and writes down how long each took.

`python -m exhaustive train.py`, with EXHAUSTIVE_FILE for what rank 0 finds. It stands
beside the tuner, which tries a few.
"""

import json
import os
import statistics
from pathlib import Path

from drivetrain_comm import _pilot, auto
from drivetrain_comm._pick import useful_streams
from drivetrain_comm._tuner import Tactic

NUM_ROUNDS = 3
NUM_COLD = 4
SIZES = tuple(mb << 20 for mb in (1, 2, 4, 8, 16, 1 << 20))


def all_tactics(group):
    """Every algorithm with every number of streams and size of buckets."""
    from drivetrain_comm import Choice

    return [
        Tactic(
            bucket_bytes=size,
            choice=Choice(algorithm=algorithm, num_streams=num_streams),
        )
        for algorithm, load in group.loads.items()
        for num_streams in (useful_streams(group.network) if load.link else [1])
        for size in SIZES
    ]


def num_steps(num_tactics):
    return NUM_COLD + NUM_ROUNDS * num_tactics + 2


def search(self, cold):
    """Takes the place of the tuner's own search."""
    for _ in range(NUM_COLD):
        yield cold
    tactics = all_tactics(self._group)
    spans = {tactic: [] for tactic in tactics}
    for turn in range(NUM_ROUNDS):
        for tactic in tactics if turn % 2 == 0 else tactics[::-1]:
            record = yield tactic
            spans[tactic].append(record.span_s)
    names = list(spans)
    values = self._agree([statistics.median(spans[name]) for name in names])
    if self._group.rank() == 0:
        found = {str(name): value for name, value in zip(names, values, strict=True)}
        Path(os.environ["EXHAUSTIVE_FILE"]).write_text(json.dumps(found, indent=1))
    best = min(range(len(names)), key=values.__getitem__)
    self.trial = _pilot.Trial(tactics=[names[best]])


if __name__ == "__main__":
    _pilot.Pilot._search = search
    auto._main()
