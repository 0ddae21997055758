"""Single all-reduces on shaped links, beside stock Gloo's and beside what is possible."""

import json
import sys
from pathlib import Path

import rig_path  # noqa: F401
from rig.goodput import flows_that_fill, measure_goodput
from rig.namespaces import missing_because
from rig.network import Network
from rig.ranks import run_ranks
from rig.shape import Link

from drivetrain_comm.selection._select import load_of_algorithm
from drivetrain_testing import Row

_PROGRAM = Path(__file__).with_name("reduce_rank.py")
_MB = 1 << 20


def hosts_of(num_hosts, ranks_per_host):
    return [
        list(range(host * ranks_per_host, (host + 1) * ranks_per_host))
        for host in range(num_hosts)
    ]


def measure(link, hosts, cases):
    """Returns the seconds of each case, and the goodput and round trip of the links."""
    words = [sys.executable, str(_PROGRAM), json.dumps(cases)]
    with Network(len(hosts), link) as network:
        goodput = measure_goodput(network, num_flows=flows_that_fill(link))
        text = run_ranks(network, hosts, words, timeout_s=600)
    return json.loads(text), goodput


def against_stock(link, shape, algorithm, num_streams, size, least):
    """Makes a bar: an algorithm is faster than stock by a factor."""

    def bar(quick):
        because = _because(quick)
        if because:
            return Row(figure=because, holds=None)
        hosts = hosts_of(*shape)
        cases = [("stock", 1, size), (algorithm, num_streams, size)]
        (stock, ours), goodput = measure(link, hosts, cases)
        return Row(
            figure=f"{stock / ours:.2f} x ({1e3 * stock:.1f} to {1e3 * ours:.1f} ms)",
            holds=stock / ours >= least,
            proven_on="namespaces",
            details={"mbit_per_s": goodput.mbit_per_s, "rtt_s": goodput.rtt_s},
        )

    return bar


def against_bound(cases, size, least):
    """Makes a bar: algorithms reach a share of what the links allow them."""

    def bar(quick):
        because = _because(quick)
        if because:
            return Row(figure=because, holds=None)
        shares = {}
        for link, shape, algorithm, num_streams in cases:
            hosts = hosts_of(*shape)
            found, goodput = measure(link, hosts, [(algorithm, num_streams, size)])
            load = load_of_algorithm(algorithm, hosts)
            bound = load.link * size / goodput.bytes_per_s
            bound += load.hops * goodput.rtt_s / 2
            name = f"{shape[0]}x{shape[1]} {algorithm}"
            shares[name] = bound / found[0]
        worst = min(shares, key=shares.get)
        return Row(
            figure=f"{shares[worst]:.2f} at least ({worst})",
            holds=shares[worst] >= least,
            proven_on="namespaces",
            details=shares,
        )

    return bar


def _because(quick):
    """Returns why there is nothing to measure, or None."""
    if quick:
        return "takes half a minute: name it with --only"
    return missing_because()


def link(rate, rtt=0, cap=None):
    return Link(rate_mbit_per_s=rate, rtt_ms=rtt, flow_cap_mbit_per_s=cap)


CASES = [
    (link(400), (2, 4), "hierarchical-direct", 1),
    (link(400), (4, 2), "hierarchical-ring", 1),
    (link(400), (8, 1), "ring", 1),
    (link(800, cap=200), (4, 1), "ring", 4),
]

BARS = [
    (
        "hierarchical",
        ">= 1.4 x stock, 4 ranks a host",
        against_stock(link(400), (2, 4), "hierarchical-direct", 1, 16 * _MB, 1.4),
    ),
    (
        "small-messages",
        ">= 2 x stock, round trip 10 ms",
        against_stock(link(1000, 10), (8, 1), "direct", 1, 64 << 10, 2.0),
    ),
    (
        "flow-cap",
        ">= 1.8 x stock, a quarter of the port a flow",
        against_stock(link(800, cap=200), (4, 1), "ring", 4, 16 * _MB, 1.8),
    ),
    (
        "goodput",
        ">= 0.90 of the links' bound, 16 MB",
        against_bound(CASES, 16 * _MB, 0.9),
    ),
    (
        "goodput-4mb",
        ">= 0.90 of the links' bound, 4 MB",
        against_bound(CASES, 4 * _MB, 0.9),
    ),
]

if __name__ == "__main__":
    for name, bound, run in BARS:
        row = run(False)
        print(f"{name}: {row.figure} ({bound}) {row.status}", row.details)
