"""Measures on this machine what drivetrain-elastic claims, against stated bounds."""

from __future__ import annotations

import sys

from failover import failover
from journal_kills import journal_kills
from sampler import sampler
from shards import batches, singles

from drivetrain_core.testing import Bar, run_bars

TABLE = [
    ("sampler", "none lost, none read twice", sampler),
    ("shard-batches", ">= 20,000 leases/s, 64 at a time", batches),
    ("shard-singles", ">= 1,000 requests/s, one at a time", singles),
    ("failover", "<= 1 s more than the lease; <= 1 s after a stop", failover),
    ("journal-kills", "nothing that was told is lost", journal_kills),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
