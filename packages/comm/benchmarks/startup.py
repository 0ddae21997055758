"""Start-up: all groups of 2048 ranks, beside torch's own way at 512 and at 8 ranks.

    python startup.py [--quick] [--only startup_2048]

The ranks of the two large ones are simulated: a few processes do the store operations
of all of them, each rank over a connection of its own to a real server. What operations
those are is taken from real ranks in the same run.
"""

from __future__ import annotations

import os
import statistics
import sys
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from redis_server import RedisServer
from startup_clients import RedisClient, TcpClient, simulate
from startup_hosts import with_hosts_line
from startup_operations import RECORDED, WORLD, check, fit, ours, record, stock

from drivetrain_comm.groups import plan_groups
from drivetrain_testing import Bar, Row, run_bars, run_ranks

_MOST = 4.0
_DIMS = {
    64: {"pipeline": 4, "data": 4, "tensor": 4},
    128: {"pipeline": 4, "data": 4, "tensor": 8},
    512: {"pipeline": 8, "data": 8, "tensor": 8},
    1024: {"pipeline": 8, "data": 16, "tensor": 8},
    2048: {"pipeline": 16, "data": 16, "tensor": 8},
}


@with_hosts_line
def startup_2048(quick):
    """All groups of 2048 ranks, with TCPStore and with Redis, beside those of 1024."""
    sizes = _checked_sizes(is_lazy=True)
    figures, details, holds = [], {}, True
    for name, place in (("TCPStore", _tcp), ("Redis", _redis)):
        for world_size in (1024, 2048):
            times = []
            for _ in range(1 if quick else 3):
                with place(world_size) as (make, where):
                    plan = plan_groups(world_size, _DIMS[world_size])
                    program = partial(ours, plan, sizes=sizes)
                    seconds, count = simulate(make, where, world_size, program)
                times.append(seconds)
            middle = statistics.median(times)
            figures.append(f"{name} {world_size}: {middle:.2f} s, {count} operations")
            details[f"{name}-{world_size}"] = {"all_s": times, "operations": count}
        small, large = (details[f"{name}-{size}"] for size in (1024, 2048))
        before, after = (statistics.median(one["all_s"]) for one in (small, large))
        # Twice the ranks, twice the operations.
        holds = holds and after <= _MOST * before
        holds = holds and large["operations"] == 2 * small["operations"]
    return Row(
        figure="; ".join(figures), holds=holds, proven_on="simulation", details=details
    )


@with_hosts_line
def startup_512_vs_stock(quick):
    """512 ranks beside torch's way, of today and with the barrier that it had."""
    world_size = 64 if quick else 512
    lazy, eager = _checked_sizes(is_lazy=True), _checked_sizes(is_lazy=False)
    plan = plan_groups(world_size, _DIMS[world_size])
    programs = {
        "ours": partial(ours, plan, sizes=lazy),
        "stock": partial(stock, plan, sizes=eager, barrier=False),
        "stock with its barrier": partial(stock, plan, sizes=eager, barrier=True),
    }
    details = {}
    for name, program in programs.items():
        with _tcp(world_size) as (make, where):
            seconds, count = simulate(make, where, world_size, program)
        details[name] = {"seconds": seconds, "operations": count}
    shown = [
        f"{n} {d['seconds']:.2f} s ({d['operations']} operations)"
        for n, d in details.items()
    ]
    mine = details["ours"]["seconds"]
    return Row(
        figure=f"{world_size} ranks, TCPStore: {'; '.join(shown)}",
        holds=all(mine <= entry["seconds"] for entry in details.values()),
        proven_on="simulation",
        details=details,
    )


@with_hosts_line
def startup_small(quick):
    """8 real ranks: world, groups and a first all-reduce of each, in turns."""
    dims = {"pipeline": 2, "data": 2, "tensor": 2}
    turns = 5 if quick else 15
    results = run_ranks(_small, 8, dims, turns, process_group=False, timeout_s=300)
    # The slowest rank of each turn counts: the others wait for it.
    by_name = {
        name: [max(r[name][turn] for r in results) for turn in range(turns)]
        for name in ("ours", "stock")
    }
    mine, theirs = (statistics.median(by_name[n]) for n in ("ours", "stock"))
    return Row(
        figure=f"{mine * 1e3:.0f} ms, stock {theirs * 1e3:.0f} ms: {mine / theirs:.2f} x",
        holds=mine <= theirs,
        proven_on="cpu-gloo",
        details={f"{name}_s": times for name, times in by_name.items()},
    )


def _checked_sizes(*, is_lazy):
    recorded = record(is_lazy)
    sizes = fit(recorded)
    plan = plan_groups(WORLD, RECORDED)
    program = ours if is_lazy else partial(stock, barrier=False)
    check(recorded, program(plan, 1, sizes))
    return sizes


@contextmanager
def _tcp(world_size):
    store = dist.TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(minutes=10),
        use_libuv=True,
    )
    yield TcpClient, ("127.0.0.1", store.port)


@contextmanager
def _redis(world_size):
    with RedisServer(max_clients=world_size + 100) as server:
        yield RedisClient, server.url(f"startup-{world_size}")


def _small(dims, turns):
    import time

    import torch

    from drivetrain_comm.groups import create_groups, lazy_gloo

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    meeting = dist.TCPStore("127.0.0.1", port, is_master=False)
    times = {"ours": [], "stock": []}

    def stock_groups():
        every = plan_groups(world_size, dims).all_groups()
        made = [(group, dist.new_group(list(group.ranks))) for group in every]
        return [new for group, new in made if rank in group.ranks]

    for turn in range(-1, turns):
        # What goes first in a turn has another past, so that they take turns at it.
        order = ("ours", "stock") if turn % 2 else ("stock", "ours")
        for name in order:
            store = dist.PrefixStore(f"{name}/{turn}", meeting)
            store.barrier("start", world_size)
            started = time.perf_counter()
            if name == "ours":
                with lazy_gloo():
                    dist.init_process_group(
                        "gloo", store=store, rank=rank, world_size=world_size
                    )
                groups = create_groups(dims).values()
            else:
                dist.init_process_group(
                    "gloo", store=store, rank=rank, world_size=world_size
                )
                groups = stock_groups()
            for group in groups:
                dist.all_reduce(torch.ones(1), group=group)
            seconds = time.perf_counter() - started
            if turn >= 0:
                times[name].append(seconds)
            store.barrier("end", world_size)
            dist.destroy_process_group()
    return times


TABLE = [
    ("startup_2048", "<= 4 x 1024 ranks, twice the operations", startup_2048),
    ("startup_512_vs_stock", "<= torch's way", startup_512_vs_stock),
    ("startup_small", "<= torch's way", startup_small),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
