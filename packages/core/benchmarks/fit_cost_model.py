"""Fits the constants of the cost model to the rows that calibrate, and prints them.

A coordinate search over ratios: each constant in turn goes up or down by a step that
halves when nothing helps. The rows that test are never looked at.
"""

from __future__ import annotations

import dataclasses
import math
import sys

from drivetrain_core.parallel.cost import Efficiency, Hardware
from drivetrain_core.simulate.clusters import load_cluster
from drivetrain_core.simulate.published import predict_on, published_rows

SHARED = ("memory", "eager", "link", "network", "contention", "straggling")
BY_KIND = ("matmul", "attention")
KINDS = ("A100", "H100")
BOUNDS = {
    "matmul": (0.4, 0.95),
    "attention": (0.1, 0.9),
    "memory": (0.5, 0.95),
    "eager": (1.0, 3.0),
    "link": (0.5, 0.95),
    "network": (0.3, 0.95),
    "contention": (0.0, 0.95),
    "straggling": (0.0, 0.02),
}
START = Efficiency(
    matmul=0.80,
    attention=0.50,
    memory=0.80,
    eager=1.5,
    link=0.75,
    network=0.70,
    contention=0.15,
    straggling=0.005,
)


def kind_of(cluster):
    """Which generation a cluster's devices are of."""
    return "A100" if cluster.startswith("a100") else "H100"


def parameters():
    """All that is fitted, with a value to start from."""
    start = {(name, ""): getattr(START, name) for name in SHARED}
    start.update(
        {(name, kind): getattr(START, name) for name in BY_KIND for kind in KINDS}
    )
    return start


def efficiencies(values):
    """The constants of each generation."""
    shared = {name: values[name, ""] for name in SHARED}
    return {
        kind: Efficiency(**shared, **{name: values[name, kind] for name in BY_KIND})
        for kind in KINDS
    }


def loss(values, rows, hardware):
    """The mean of the squared errors in log, each limited: one odd row must not rule."""
    found = efficiencies(values)
    total = 0.0
    for row in rows:
        device = dataclasses.replace(
            hardware[row.cluster], efficiency=found[kind_of(row.cluster)]
        )
        error = math.log1p(predict_on(row, device).error)
        total += min(abs(error), 0.3) ** 2
    return total / len(rows)


def fit(rows):
    """The constants that fit rows best."""
    hardware = {
        c: Hardware.of(load_cluster(c).nodes[0]) for c in {r.cluster for r in rows}
    }
    values = parameters()
    best, step = loss(values, rows, hardware), 0.2
    while step > 0.004:
        improved = False
        for key in values:
            low, high = BOUNDS[key[0]]
            for ratio in (1 + step, 1 / (1 + step)):
                moved = min(high, max(low, (values[key] or 0.001) * ratio))
                found = loss({**values, key: moved}, rows, hardware)
                if found < best * (1 - 1e-5):
                    values[key], best, improved = moved, found, True
                    break
        if not improved:
            step /= 2
    return values, best


def main():
    """Fits, and prints what belongs into `efficiency.py`."""
    rows = [row for row in published_rows() if row.calibrates]
    values, best = fit(rows)
    print(f"{len(values)} constants, {len(rows)} rows, {math.sqrt(best):.2%} off (rms)")
    for (name, kind), value in values.items():
        print(f"{name:12s} {kind:5s} {value:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
