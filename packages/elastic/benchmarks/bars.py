"""Measures on this machine what drivetrain-elastic claims, against stated bounds."""

from __future__ import annotations

import sys

import recovery
from agents import agents, decisions
from failover import failover
from journal_kills import journal_kills
from losses import losses_fp32, losses_fp64
from sampler import sampler
from shards import batches, singles
from transfer import transfer

from drivetrain_core.testing import Bar, run_bars

TABLE = [
    ("kills", "pause <= 0.3 s, four again <= 1.5 s, 1 step again", recovery.kills),
    ("cold-kills", "pause <= 0.3 s, four again <= 4 s", recovery.cold_kills),
    ("stops", "time-out + 0.5 s, four again + 1.5 s", recovery.stops),
    ("node-kills", "<= heartbeat's time-out + 1 s", recovery.node_kills),
    ("leaves-joins", "leave <= 0.3 s, join <= 2 s", recovery.leaves),
    ("master-kills", "no pause, a new one <= 1 s", recovery.master_kills),
    ("losses-fp64", "<= 1e-9 relative", losses_fp64),
    ("losses-fp32", "within the spread of 3 seeds", losses_fp32),
    ("agents", "1,000: world <= 5 s, p99 of a call <= 100 ms", agents),
    ("decisions", "<= 100 ms for 10,000 workers", decisions),
    ("transfer", "<= 1.5 x loopback's time", transfer),
    ("sampler", "none lost, none read twice", sampler),
    ("shard-batches", ">= 20,000 leases/s, 64 at a time", batches),
    ("shard-singles", ">= 1,000 requests/s, one at a time", singles),
    ("failover", "<= 1 s more than the lease; <= 1 s after a stop", failover),
    ("journal-kills", "nothing that was told is lost", journal_kills),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
