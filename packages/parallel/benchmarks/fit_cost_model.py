"""Fits the constants of the cost model to the rows that calibrate, and prints them.

A pattern search over ratios, after Hooke and Jeeves: each constant in turn goes up or
down by a step, what helped is repeated as a whole for as long as it helps, and the step
halves when nothing does. The rows that test are never looked at.

What all programs share is fitted first, then, with that, the options of one source to the
rows of this source that name them.
"""

from __future__ import annotations

import dataclasses
import math
import sys

from drivetrain_parallel.cost import Efficiency, Hardware
from drivetrain_parallel.simulate.clusters import load_cluster
from drivetrain_parallel.simulate.published import predict_on, published_rows

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
    "reduce_rate_share": (0.01, 1.0),
}
OPTIONS = {"reduce_rate_share": 0.1}
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


def devices(values, rows):
    """The hardware of each cluster, with the constants of its generation."""
    found = efficiencies(values)
    return {
        cluster: Hardware.of(load_cluster(cluster).nodes[0], found[kind_of(cluster)])
        for cluster in {row.cluster for row in rows}
    }


def loss(rows, hardware):
    """The mean of the squared errors in log, each limited: one odd row must not rule."""
    errors = (math.log1p(predict_on(row, hardware[row.cluster]).error) for row in rows)
    return sum(min(abs(error), 0.3) ** 2 for error in errors) / len(rows)


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


def search(values, wrong):
    """The constants that are least wrong, and how wrong they are."""
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


def fit(rows):
    """The constants of all programs that fit rows best, and how wrong they are."""
    return search(parameters(), lambda values: loss(rows, devices(values, rows)))


def fit_option(name, rows, hardware):
    """The value of a source's option that fits rows best, and how wrong it is."""

    def wrong(values):
        tried = [
            dataclasses.replace(row, options={**row.options, name: values[name, ""]})
            for row in rows
        ]
        return loss(tried, hardware)

    values, best = search({(name, ""): OPTIONS[name]}, wrong)
    return values[name, ""], best


def main():
    """Fits, and prints what belongs into `efficiency.py` and `published.yaml`."""
    rows = [row for row in published_rows() if row.fits == "efficiency"]
    values, best = fit(rows)
    print(f"{len(values)} constants, {len(rows)} rows, {math.sqrt(best):.2%} off (rms)")
    for (name, kind), value in values.items():
        print(f"{name:12s} {kind:5s} {value:.4g}")
    for name in OPTIONS:
        rows = [row for row in published_rows() if row.fits == name]
        value, best = fit_option(name, rows, devices(values, rows))
        sources = ", ".join(sorted({row.source for row in rows}))
        print(f"{sources}: {len(rows)} rows, {math.sqrt(best):.2%} off (rms)")
        print(f"{name} {value:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
