"""Measures on this machine what drivetrain-health claims, against stated bounds."""

from __future__ import annotations

import sys

from diagnosis import decision_layer, network_overhead
from node_check import real, simulated

from drivetrain_core.testing import Bar, Row, run_bars


def whole(measure):
    """Leaves a bar out of the quick form, which ends within a minute."""

    def run(quick):
        if quick:
            return Row(figure="takes longer than the quick form", holds=None)
        return measure(quick)

    return run


TABLE = [
    ("diagnosis", "1,000 faults: node and class, both >= 99%", decision_layer),
    ("network-counters", "every 10 ms, <= 2% of a core", whole(network_overhead)),
    ("node-check-256", "1 bad in 2 rounds, 2 in 4, no other", simulated),
    ("node-check", "1 bad of 4 processes <= 10 s", whole(real)),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
