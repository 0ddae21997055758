"""Measures on this machine what drivetrain-health claims, against stated bounds."""

from __future__ import annotations

import sys

from diagnosis import decision_layer, network_overhead
from excerpts import development, excerpts
from node_check import real, simulated

from drivetrain_testing import Bar, run_bars, slow

TABLE = [
    ("diagnosis", "1,000 faults: node and class, both >= 99%", decision_layer),
    ("excerpts", ">= 95% right, no infrastructure stops a job", excerpts),
    ("excerpts-development", ">= 95% right, likewise", development),
    ("network-counters", "every 10 ms, <= 2% of a core", slow(network_overhead)),
    ("node-check-256", "1 bad in 2 rounds, 2 in 4, no other", simulated),
    ("node-check", "1 bad of 4 processes <= 10 s", slow(real)),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
