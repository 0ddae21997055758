"""Measures on this machine what drivetrain-elastic claims, against stated bounds.

The rows of peers need an environment of their own (see peers_environment.txt).
"""

from __future__ import annotations

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
from step_table import step_table
from strangers import strangers
from transfer import transfer

from drivetrain_testing import Bar, run_bars, slow

TABLE = [
    ("kills", "pause <= 6 steps, four again <= 30, 1 step again", recovery.kills),
    (
        "sharded-kills",
        "pause <= 6 steps, four again <= 30",
        slow(recovery.sharded_kills),
    ),
    ("cold-kills", "pause <= 6 steps, four again <= 80", slow(recovery.cold_kills)),
    ("stops", "time-out + 10 steps, four again + 30", slow(recovery.stops)),
    ("node-kills", "<= heartbeat's time-out + 20 steps", slow(recovery.node_kills)),
    ("leaves-joins", "leave <= 6 steps, join <= 40", slow(recovery.leaves)),
    ("master-kills", "no pause, a new one <= 20 steps", recovery.master_kills),
    ("losses-fp64", "<= 1e-9 relative", slow(losses_fp64)),
    ("losses-fp32", "within the spread of 3 seeds", slow(losses_fp32)),
    ("overhead", "<= 0.5% of a step of 50 ms", slow(overhead)),
    ("transfer", "<= 1.5 x loopback's time", slow(transfer)),
    ("large-state", "no longer than two steps", slow(recovery.large_state)),
    ("step-table", "all equal or refused by name", slow(step_table)),
    ("sampler", "none lost, none read twice", sampler),
    ("shard-batches", "64 leases at a time: >= 10 x one", batches),
    ("shard-singles", ">= 1 x records synced one by one", singles),
    ("journal-kills", "nothing that was told is lost", slow(journal_kills)),
    ("failover", "<= 1 s more than the lease; <= 1 s after a stop", slow(failover)),
    ("agents", "1,000: world <= 5 s, p99 of a call <= 100 ms", slow(agents)),
    ("strangers", "10,000: <= 32 MiB, owner waits <= 1 s", slow(strangers)),
    ("decisions", "10,000 workers: <= 3 x adding them", decisions),
    ("real-faults", "50 faults: node and class, both >= 99%", slow(real_faults)),
    ("effective-time", "a fault a minute: >= 95%", slow(effective_time)),
    ("care-overhead", "< 0.5% of a step of 50 ms", slow(care_overhead)),
    *((name, bound, slow(measure)) for name, bound, measure in peers.PEERS),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
