"""Simulates a save on thousands of ranks, from what was measured on this machine.

Measured here: the rate at which a node copies and writes, in samples of which every
simulated node draws its own; a rank's plan; the manifests' bytes; and the work of the
first rank over them. Assumed, and printed: the storage and the network. The save itself
on many nodes is not measured: no row of this table stands for a run.
"""

import math
import random
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from dcp_planning import planner_cost
from planning import planned
from programs import parser_of, write_report
from workload import MIB, NUM_THREADS, make_state, new_place, say, settle, timed

from drivetrain_checkpoint import Checkpointer

_MEASURED_RANKS = 1_024
_PAGE_FILES = 1_000
_AGREEMENT_BYTES = 200
"""What a rank tells all others before it copies: step, digest, save id, time."""


@dataclass(frozen=True)
class Cluster:
    """What is assumed.

    `storage` is what all nodes together write to; an operation on it, and a message
    between nodes, takes `round_trip_s`.
    """

    ranks_per_node: int
    bytes_per_rank: float
    storage_bytes_s: float
    network_bytes_s: float
    round_trip_s: float


@dataclass(frozen=True)
class Node:
    """Samples of one node: bytes a second, copied and made durable."""

    copy_bytes_s: tuple
    write_bytes_s: tuple


def measured_node(size_mib, num_saves):
    """Samples of this machine."""
    torch.set_num_threads(NUM_THREADS)
    size = size_mib * MIB
    state = make_state(size)
    stalls, totals = [], []
    with new_place() as place:
        checkpointer = Checkpointer(place.folder, job="scale", keep=1)
        for step in range(num_saves + 2):
            handle = checkpointer.save(step, {"state": state})
            stalls.append(handle.stall_s)
            totals.append(timed(handle.wait))
            settle()
    return Node(
        copy_bytes_s=tuple(size / s for s in stalls[2:]),
        write_bytes_s=tuple(size / s for s in totals[2:]),
    )


def simulated(num_ranks, cluster, node, cost, seed=0):
    """Phases of one save in seconds, and the bytes that its commit moves."""
    draw = random.Random(seed)
    num_nodes = math.ceil(num_ranks / cluster.ranks_per_node)
    node_bytes = cluster.bytes_per_rank * cluster.ranks_per_node
    depth = math.ceil(math.log2(num_ranks))
    agreed = num_ranks * _AGREEMENT_BYTES
    # Twice: the lengths of what is exchanged, then that itself.
    agree_s = 2 * depth * cluster.round_trip_s + agreed / cluster.network_bytes_s
    copy_s = max(node_bytes / draw.choice(node.copy_bytes_s) for _ in range(num_nodes))
    share = cluster.storage_bytes_s / num_nodes
    written = [
        node_bytes / min(share, draw.choice(node.write_bytes_s))
        for _ in range(num_nodes)
    ]
    work_s = (cost.gather_s + cost.root_s) * num_ranks / _MEASURED_RANKS
    root_bytes = cost.root_bytes * num_ranks / _MEASURED_RANKS
    told = num_ranks * cost.told_bytes
    # Word of the last rank, a list of the files in pages of 1,000, and the root.
    pages = math.ceil(2 * num_ranks / _PAGE_FILES)
    commit_s = (
        (told + root_bytes) / cluster.network_bytes_s
        + (1 + pages + 3) * cluster.round_trip_s
        + work_s
    )
    return {
        "num_ranks": num_ranks,
        "state_bytes": num_ranks * cluster.bytes_per_rank,
        "plan_s": cost.plan_s,
        "again_s": cost.again_s,
        "agree_s": agree_s,
        "copy_s": copy_s,
        "stall_s": cost.again_s + agree_s + copy_s,
        "written_s": max(written),
        "commit_s": commit_s,
        "commit_bytes": told + root_bytes,
        "manifests_bytes": num_ranks * cost.rank_bytes + root_bytes,
    }


def table(rows, planners):
    """The rows as Markdown."""
    columns = (
        "ranks",
        "state",
        "stall",
        "of it: plan, agreement, copy",
        "all written",
        "commit",
        "all manifests",
        "DCP's coordinator, extrapolated",
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row, planner in zip(rows, planners, strict=True):
        parts = (row["again_s"], row["agree_s"], row["copy_s"])
        cells = (
            f"{row['num_ranks']:,}",
            _size(row["state_bytes"]),
            f"{row['stall_s']:.2f} s",
            ", ".join(f"{part:.3f}" for part in parts),
            f"{row['written_s']:.1f} s",
            _commit(row["commit_s"], row["commit_bytes"]),
            _size(row["manifests_bytes"]),
            _commit(planner.coordinator_s, planner.metadata_bytes),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _commit(seconds, num_bytes):
    """What is added to the time of the writes, and the bytes that are moved for it."""
    return f"+ {seconds:.2f} s, {_size(num_bytes)}"


def _size(num_bytes):
    """Bytes, in words."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--tensors", type=int, default=1_000)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--gb-per-rank", type=float, default=1.0)
    parser.add_argument("--storage-gb-s", type=float, default=200.0)
    parser.add_argument("--network-gb-s", type=float, default=25.0)
    parser.add_argument("--round-trip-ms", type=float, default=0.5)
    parser.add_argument("--mib", type=int, default=2048, help="of the measured save")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    cluster = Cluster(
        ranks_per_node=given.ranks_per_node,
        bytes_per_rank=given.gb_per_rank * 1e9,
        storage_bytes_s=given.storage_gb_s * 1e9,
        network_bytes_s=given.network_gb_s * 1e9,
        round_trip_s=given.round_trip_ms / 1e3,
    )
    say(f"a node: saves of {given.mib:,} MiB")
    node = measured_node(given.mib, 8)
    say(f"plans: {given.tensors:,} tensors, {_MEASURED_RANKS:,} ranks")
    cost = planned(given.tensors, _MEASURED_RANKS)
    say("DCP's planner: 32 and 64 ranks")
    small, large = (planner_cost(given.tensors, num) for num in (32, 64))
    rows = [simulated(num, cluster, node, cost) for num in given.ranks]
    planners = [large.extrapolated(num) for num in given.ranks]
    print(
        f"assumed: {given.ranks_per_node} ranks a node, {given.gb_per_rank:g} GB and "
        f"{given.tensors:,} tensors a rank, storage {given.storage_gb_s:g} GB/s for "
        f"all, network {given.network_gb_s:g} GB/s a node, {given.round_trip_ms:g} ms "
        "for an operation or message\n"
        f"measured: a node copies {statistics.median(node.copy_bytes_s) / 1e9:.1f} and "
        f"writes {statistics.median(node.write_bytes_s) / 1e9:.2f} GB/s; the first "
        f"plan {cost.plan_s * 1e3:.0f} ms, the next {cost.again_s * 1e3:.0f} ms; "
        f"a manifest of a rank {_size(cost.rank_bytes)}; DCP's coordinator "
        f"{small.coordinator_s:.2f} s for 32 ranks, {large.coordinator_s:.2f} s for "
        "64\n"
    )
    print(table(rows, planners))
    if given.json:
        report = {
            "rows": rows,
            "cluster": asdict(cluster),
            "node": asdict(node),
            "planning": asdict(cost),
            "dcp": [asdict(small), asdict(large)],
        }
        write_report(given.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
