"""The fabric simulator: how long it takes, and whether its hash meets the closed form.

python network.py [--quick] [--only fabric-12288]
"""

from __future__ import annotations

import sys
import time

from drivetrain_fabric.network import (
    Clos,
    Ecmp,
    Job,
    Tier,
    collective,
    compare,
    overload_probability,
    simulated_overload,
)
from drivetrain_testing import Bar, Row, run_bars

_GPUS, _MOST, _WITHIN = 12_288, 16.0, 0.01


def twelve_thousand(quick):
    """How long 12,288 GPUs take, beside an eighth of them."""
    small, _ = simulated(_GPUS // 8, quick)
    seconds, slowdown = simulated(_GPUS, quick)
    ratio = max(took / small[name] for name, took in seconds.items())
    shown = ", ".join(f"{name} {took:.1f} s" for name, took in seconds.items())
    return Row(
        figure=f"{ratio:.1f} x: {shown}; 24 settings each",
        holds=ratio <= _MOST,
        proven_on="simulation",
        details={"seconds": seconds, "eighth": small, "slowdown": slowdown},
    )


def simulated(num_gpus, quick):
    """Every placement, with 1 to 8 queue pairs, and with ports split or not."""
    leaf = Tier(downlinks=64, uplinks=32, uplink_bits_per_s=400e9)
    spine = Tier(downlinks=32, uplinks=32, uplink_bits_per_s=400e9)
    clos = Clos(
        num_nodes=num_gpus // 8,
        nic_bits_per_s=200e9,
        tiers=(leaf, spine, Tier(downlinks=64)),
    )
    ring = collective(
        "all-reduce",
        num_nodes=clos.num_nodes,
        nics_per_node=8,
        size_bytes=1e9,
        num_ranks=num_gpus,
    )
    job = Job(
        num_gpus=num_gpus, pipeline=8, gradient_bytes=5.4e9, activation_bytes=2.4e9
    )
    seconds, slowdown = {}, {}
    for name, phases in (("all-reduce", [ring]), ("job", job.phases())):
        if quick and name == "job":
            continue
        started = time.perf_counter()
        measures = compare(clos, phases, nodes=range(clos.num_nodes))
        seconds[name] = time.perf_counter() - started
        for each in measures:
            ratio, num = each.uplink_ratio, each.num_queue_pairs
            setting = f"{name}, {each.placement}, {ratio:g} cards a port, {num} QPs"
            slowdown[setting] = each.slowdown
    return seconds, slowdown


def hash_meets_closed_form(quick):
    """A CRC of five-tuples, and an ideal hash, for several numbers of flows."""
    num_samples = 100_000 if quick else 400_000
    cases = [(4, 32, 1), (8, 32, 1), (8, 64, 1), (12, 48, 1), (32, 32, 3), (64, 32, 5)]
    errors = {}
    for kind in ("crc", "random"):
        for num_flows, num_links, carried in cases:
            expected = overload_probability(num_flows, num_links, carried)
            found = simulated_overload(
                num_flows,
                num_links,
                carried,
                ecmp=Ecmp(kind=kind, seed=1),
                num_samples=num_samples,
            )
            name = (
                f"{kind}, {num_flows} flows on {num_links} links, more than {carried}"
            )
            errors[name] = abs(found / expected - 1)
    worst = max(errors, key=errors.get)
    return Row(
        figure=f"{100 * errors[worst]:.2f}% at most ({worst})",
        holds=errors[worst] <= _WITHIN,
        proven_on="simulation",
        details=errors,
    )


BARS = [
    ("fabric-12288", "<= 16 x an eighth of the GPUs", twelve_thousand),
    ("fabric-ecmp", "<= 1% off the closed form", hash_meets_closed_form),
]

if __name__ == "__main__":
    bars = [Bar(name=name, bound=bound, measure=run) for name, bound, run in BARS]
    sys.exit(run_bars(bars, description=__doc__))
