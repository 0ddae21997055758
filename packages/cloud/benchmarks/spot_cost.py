"""Strategies on spot nodes, simulated: what they save, and how long 100 jobs take."""

import os
import sys
import time

from drivetrain_cloud.cost import (
    PROFILES,
    SHAPES,
    Scenario,
    shipped_prices,
    simulate_all,
    usual_strategies,
)
from drivetrain_cloud.cost.report import range_text
from drivetrain_testing import Row

_OFFER = "example/zone-a/gpu-8"
_SIZES = (2, 4, 8, 16)
# What the vendor's article claims for its two jobs; it states no price and no trace.
_CLAIMED = {"resnet50": 0.92, "bert-large": 0.81}


def scenarios(sizes, strategies=None, days=30.0):
    prices = shipped_prices()
    return [
        Scenario(
            profile=PROFILES[name],
            strategy=strategy,
            prices=prices,
            offer=_OFFER,
            traces=SHAPES["busy"],
            places=nodes + (nodes + 3) // 4,
            days=days,
        )
        for name in _CLAIMED
        for nodes in sizes
        for strategy in usual_strategies(nodes)
        if strategies is None or strategy.name in strategies
    ]


def speed(quick):
    """100 jobs of 8 nodes for 30 days, each with a trace of its own."""
    took_s, cpus_s, taken = {}, {}, 0.0
    for label, names in (("resize", ["resize"]), ("five strategies", None)):
        if quick and names is None:
            continue
        began_s, began_cpu_s = time.perf_counter(), cpu_s()
        found = simulate_all(
            scenarios([8], names), seeds=range(50), processes=os.cpu_count() or 1
        )
        took_s[label] = time.perf_counter() - began_s
        cpus_s[label] = cpu_s() - began_cpu_s
        taken = max(taken, *(one.taken for one in found))
    return Row(
        figure="; ".join(
            f"{label}: {s:.1f} s, {cpus_s[label]:.1f} s of processors"
            for label, s in took_s.items()
        )
        + f" for 100 jobs of 8 nodes and 30 days, {taken:.0f} reclaims each, "
        f"{os.cpu_count()} processes",
        holds=took_s["resize"] <= 60.0,
        proven_on="simulation",
        details={"took_s": took_s, "cpus_s": cpus_s},
    )


def cpu_s():
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def saving(quick):
    """What strategies save by number of nodes, and what the article's figures need."""
    sizes = _SIZES[1:3] if quick else _SIZES
    found = simulate_all(
        scenarios(sizes), seeds=range(2 if quick else 5), processes=os.cpu_count() or 1
    )
    by = {
        (s.scenario.profile.name, s.scenario.nodes, s.scenario.strategy.name): s
        for s in found
    }
    parts = []
    for name, claimed in _CLAIMED.items():
        resize, restart = (
            by[name, sizes[-1], one] for one in ("resize+fallback", "restart")
        )
        price = 0.3 * resize.price_factor_for(claimed)
        parts.append(
            f"{name}, {sizes[-1]} nodes: {range_text(resize.saving)} at "
            f"{resize.goodput.mean:.1%} of full speed, without fault tolerance "
            f"{range_text(restart.saving)} at {restart.goodput.mean:.1%}; the claimed "
            f"{claimed:.0%} need spot nodes at {price:.1%} of the price on demand"
        )
    return Row(
        figure="; ".join(parts) + "; here they cost 30%, so that 70% is the most",
        holds=all(
            by[name, size, "resize+fallback"].saving.mean
            >= by[name, size, "restart"].saving.mean
            for name in _CLAIMED
            for size in sizes
        ),
        proven_on="simulation",
        details={
            " ".join(map(str, key)): [
                one.saving.mean,
                one.saving.low,
                one.saving.high,
                one.goodput.mean,
            ]
            for key, one in by.items()
        },
    )


if __name__ == "__main__":
    for measure in (speed, saving):
        print(measure.__name__, measure("--quick" in sys.argv).figure, flush=True)
