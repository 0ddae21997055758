"""What a rank asks of the store at its start: written down here, and checked against
what real ranks ask for.

A rank's program is a list of phases, of which each is a list of operations. What an
operation waits for is set in an earlier phase.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from drivetrain_testing import run_ranks

# The ranks of a recorded run, and its groups.
RECORDED = {"pipeline": 2, "data": 4, "tensor": 1}
WORLD = 8
# Of a name of torch's for a group: a SHA-1 in hexadecimal.
_NAME = "f" * 40


@dataclass(frozen=True)
class Sizes:
    """How many bytes a rank publishes of itself in a group: a line over the group."""

    fixed: float
    per_rank: float

    def of(self, size):
        return round(self.fixed + self.per_rank * size)


def ours(plan, rank, sizes):
    """`create_groups` with Gloo that connects lazily, and a first all-reduce of each."""
    groups = plan.groups_of(rank)
    publish = [("set", f"0//cpu//0/{rank}", sizes.of(plan.world_size))]
    publish += [("compare_set", "drivetrain_groups/0", len(str(plan)))]
    connect = []
    for group in groups:
        key, mine = _key(group), group.ranks.index(rank)
        publish.append(("set", f"{key}/{mine}", sizes.of(len(group.ranks))))
        connect += _read(key, _neighbours(mine, len(group.ranks)))
    return [publish, connect]


def stock(plan, rank, sizes, *, barrier):
    """`new_group` of all groups by all ranks, with Gloo that connects all to all."""
    num = plan.world_size
    phases = [[("set", f"0//cpu//0/{rank}", sizes.of(num))]]
    phases.append(_read("0//cpu//0", range(num)))
    for number, group in enumerate(plan.all_groups()):
        if rank in group.ranks:
            size, mine = len(group.ranks), group.ranks.index(rank)
            key = _key(group)
            phases.append([("set", f"{key}/{mine}", sizes.of(size))])
            phases.append(_read(key, range(size)))
        elif barrier:
            # So that all ranks are in the same phase of the same group.
            phases += [[], []]
        if barrier:
            key = f"store_based_barrier_key:{number}"
            phases.append([("arrive", key, num)])
            phases.append([("wait", f"{key}:last_worker", 0)])
    return phases


def _key(group):
    return f"{_NAME[len(group.name) :]}{group.name}{group.index}//cpu//0"


def _neighbours(mine, size):
    found = [(mine + 1) % size, (mine - 1) % size]
    return [peer for peer in dict.fromkeys(found) if peer != mine]


def _read(key, peers):
    return [(name, f"{key}/{peer}", 0) for peer in peers for name in ("wait", "get")]


def record(is_lazy):
    """Runs real ranks, and returns what rank 1 asked for: names, and sizes of values."""
    return run_ranks(_start, WORLD, is_lazy, process_group=False, timeout_s=120)[1]


def fit(operations):
    """Returns the sizes of what was published, by the size of the group."""
    published = [size for name, size in operations if name == "set"]
    points = list(zip([WORLD, *RECORDED.values()], published, strict=True))
    (most, large), (least, small) = max(points), min(points)
    per_rank = (large - small) / (most - least)
    sizes = Sizes(fixed=small - per_rank * least, per_rank=per_rank)
    # A byte or two is in the names of the groups.
    assert all(abs(sizes.of(n) - size) <= 8 for n, size in points), points
    return sizes


def check(recorded, phases):
    """Raises unless a program has the operations that real ranks had."""
    real = Counter(name for name, _ in recorded)
    made = Counter(name for phase in phases for name, _, _ in phase)
    assert real == made, f"real ranks: {dict(real)}; simulated ones: {dict(made)}"


def _start(is_lazy):
    import contextlib

    import torch
    import torch.distributed as dist
    from counting_store import CountingStore

    from drivetrain_comm.groups import create_groups, lazy_gloo, plan_groups

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    store = CountingStore(dist.TCPStore("127.0.0.1", port, is_master=False))
    dims = {"pipeline": 2, "data": 4, "tensor": 1}
    with lazy_gloo() if is_lazy else contextlib.nullcontext():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if is_lazy:
        groups = create_groups(dims).values()
    else:
        every = plan_groups(world_size, dims).all_groups()
        made = [(group, dist.new_group(list(group.ranks))) for group in every]
        groups = [new for group, new in made if rank in group.ranks]
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    noted = list(store.operations)
    dist.barrier()
    return [(o.name, sum(o.sizes)) for o in noted]
