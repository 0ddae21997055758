"""Fits the constants of the cost model to the rows that calibrate, and prints them.

A pattern search over ratios, after Hooke and Jeeves: each constant in turn goes up or
down by a step, what helped is repeated as a whole for as long as it helps, and the step
halves when nothing does. The rows that test are never looked at.
"""

from __future__ import annotations

import dataclasses
import math
import sys

from drivetrain_core.parallel.cost import Efficiency, Hardware
from drivetrain_core.simulate.clusters import load_cluster
from drivetrain_core.simulate.published import predict_on, published_rows

SHARED = ("memory", "eager", "network", "contention", "straggling")
BY_KIND = ("matmul", "attention")
KINDS = ("A100", "H100")
BOUNDS = {
    "matmul": (0.4, 0.95),
    "attention": (0.1, 0.9),
    "memory": (0.5, 0.95),
    "eager": (1.0, 3.0),
    "network": (0.3, 0.95),
    "contention": (0.0, 0.95),
    "straggling": (0.0, 0.02),
}
START = Efficiency(
    matmul=0.80,
    attention=0.50,
    memory=0.80,
    eager=1.5,
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


def moved(values, key, ratio):
    """All constants, with one of them times a ratio, within its bounds."""
    low, high = BOUNDS[key[0]]
    return {**values, key: min(high, max(low, (values[key] or 0.001) * ratio))}


def explore(values, best, step, wrong):
    """The constants after each was tried up and down, and how wrong they are."""
    for key in values:
        for ratio in (1 + step, 1 / (1 + step)):
            tried = moved(values, key, ratio)
            found = wrong(tried)
            if found < best:
                values, best = tried, found
                break
    return values, best


def fit(rows):
    """The constants that fit rows best."""
    hardware = {
        c: Hardware.of(load_cluster(c).nodes[0]) for c in {r.cluster for r in rows}
    }

    def wrong(values):
        return loss(values, rows, hardware)

    values = parameters()
    best, step = wrong(values), 0.2
    while step > 0.002:
        before, (values, found) = values, explore(values, best, step, wrong)
        if found > best * (1 - 1e-5):
            step /= 2
        best = found
        ratios = {key: values[key] / before[key] for key in values}
        while max(ratios.values()) != 1 or min(ratios.values()) != 1:
            tried = values
            for key, ratio in ratios.items():
                tried = moved(tried, key, ratio)
            found = wrong(tried)
            if found >= best:
                break
            values, best = tried, found
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
