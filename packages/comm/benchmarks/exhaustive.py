"""A launcher that tries every plan in turns, and writes down how long each took.

`python -m exhaustive train.py`, with EXHAUSTIVE_FILE for what rank 0 finds, and in
EXHAUSTIVE_CHOICE what the tuner chose. In the end that choice and the best of all take
turns for longer, with that at which tuning layer by layer ends: the least of many short
measurements is least by luck as well.
"""

import json
import os
import statistics
from pathlib import Path

from layers import layers

from drivetrain_comm import Choice, auto
from drivetrain_comm.ddp import _ddp_tuner
from drivetrain_comm.ddp._cache import dump_plan, load_plan
from drivetrain_comm.ddp._reduction_plan import ReductionPlan
from drivetrain_comm.selection._choice import STOCK
from drivetrain_comm.selection._select import useful_streams

NUM_ROUNDS = 3
NUM_COLD = 4
NUM_FINALISTS = 4
NUM_FINAL_ROUNDS = 10
SIZES = tuple(mb << 20 for mb in (1, 2, 4, 8, 16, 25, 1 << 20))


def all_plans(group):
    """Every algorithm with every number of streams and size of buckets."""
    streams = {
        name: useful_streams(group.network) if load.link else [1]
        for name, load in group.loads.items()
    }
    return [
        ReductionPlan(
            bucket_bytes=size,
            choice=Choice(algorithm=algorithm, num_streams=num_streams),
        )
        for algorithm, counts in {STOCK: [1], **streams}.items()
        for num_streams in counts
        for size in SIZES
    ]


def num_steps(num_plans):
    finals = NUM_FINAL_ROUNDS * (NUM_FINALISTS + 2)
    return NUM_COLD + NUM_ROUNDS * num_plans + finals + 2


def in_turns(tuner, plans, num_rounds):
    """Returns the median span of each, the slowest rank's."""
    spans = {plan: [] for plan in plans}
    for turn in range(num_rounds):
        for plan in plans if turn % 2 == 0 else plans[::-1]:
            record = yield plan
            spans[plan].append(record.span_s)
    medians = tuner._group.agree_on_most(
        [statistics.median(spans[one]) for one in plans]
    )
    return dict(zip(plans, medians, strict=True))


def search(self, cold):
    """Takes the place of the tuner's own search."""
    for _ in range(NUM_COLD):
        yield cold
    every = yield from in_turns(self, all_plans(self._group), NUM_ROUNDS)
    finalists = sorted(every, key=every.__getitem__)[:NUM_FINALISTS]
    chosen = load_plan(os.environ["EXHAUSTIVE_CHOICE"])
    layered = layers(every)["layer by layer"]
    finalists = list(dict.fromkeys([chosen, layered, *finalists]))
    final = yield from in_turns(self, finalists, NUM_FINAL_ROUNDS)
    if self._group.rank() == 0:
        found = {
            name: {dump_plan(plan): seconds for plan, seconds in spans.items()}
            for name, spans in (("every", every), ("final", final))
        }
        Path(os.environ["EXHAUSTIVE_FILE"]).write_text(json.dumps(found, indent=1))
    self.trial = _ddp_tuner.Trial(plans=[min(final, key=final.__getitem__)])


if __name__ == "__main__":
    _ddp_tuner.DdpTuner._search = search
    auto._main()
