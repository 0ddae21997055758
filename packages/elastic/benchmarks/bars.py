"""Measures on this machine what drivetrain-elastic claims, against stated bounds.

The rows of peers need an environment of their own (see peers_environment.txt).
"""

from __future__ import annotations

import functools
import sys

import peers
import recovery
from agents import agents, decisions
from care_overhead import care_overhead
from effective_time import effective_time
from failover import failover
from journal_kills import journal_kills
from losses import losses_fp32, losses_fp64
from overhead import overhead
from real_faults import real_faults
from sampler import sampler
from shards import batches, singles
from transfer import transfer

from drivetrain_core.testing import Bar, Row, run_bars


def whole(measure):
    """Leaves a bar out of the quick form, which ends within a minute."""

    @functools.wraps(measure)
    def run(quick):
        if quick:
            return Row(figure="takes longer than the quick form", holds=None)
        return measure(quick)

    return run


TABLE = [
    ("kills", "pause <= 6 steps, four again <= 30, 1 step again", recovery.kills),
    (
        "sharded-kills",
        "pause <= 6 steps, four again <= 30",
        whole(recovery.sharded_kills),
    ),
    ("cold-kills", "pause <= 6 steps, four again <= 80", whole(recovery.cold_kills)),
    ("stops", "time-out + 10 steps, four again + 30", whole(recovery.stops)),
    ("node-kills", "<= heartbeat's time-out + 20 steps", whole(recovery.node_kills)),
    ("leaves-joins", "leave <= 6 steps, join <= 40", whole(recovery.leaves)),
    ("master-kills", "no pause, a new one <= 20 steps", recovery.master_kills),
    ("losses-fp64", "<= 1e-9 relative", whole(losses_fp64)),
    ("losses-fp32", "within the spread of 3 seeds", whole(losses_fp32)),
    ("overhead", "< 1% of a step of 50 ms", whole(overhead)),
    ("transfer", "<= 1.5 x loopback's time", whole(transfer)),
    ("large-state", "no longer than two steps", whole(recovery.large_state)),
    ("sampler", "none lost, none read twice", sampler),
    ("shard-batches", "64 leases at a time: >= 10 x one", batches),
    ("shard-singles", ">= 1 x records synced one by one", singles),
    ("journal-kills", "nothing that was told is lost", whole(journal_kills)),
    ("failover", "<= 1 s more than the lease; <= 1 s after a stop", whole(failover)),
    ("agents", "1,000: world <= 5 s, p99 of a call <= 100 ms", whole(agents)),
    ("decisions", "10,000 workers: <= 3 x adding them", decisions),
    ("real-faults", "50 faults: node and class, both >= 99%", whole(real_faults)),
    ("effective-time", "a fault a minute: >= 95%", whole(effective_time)),
    ("care-overhead", "< 0.5% of a step of 50 ms", whole(care_overhead)),
    *((name, bound, whole(measure)) for name, bound, measure in peers.PEERS),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
