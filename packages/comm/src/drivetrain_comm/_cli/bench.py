"""`drivetrain comm bench`: every algorithm beside torch's own, by size."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

from drivetrain_comm._cli.common import group_of_ranks, human
from drivetrain_comm.selection._choice import STOCK, Choice
from drivetrain_core.tables import print_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from drivetrain_comm import TunedProcessGroup

_NUM_LEAST, _NUM_MOST = 3, 200
_ENOUGH_S = 0.5


def run(args: argparse.Namespace) -> int:
    """Carries out the command, and returns the exit status."""
    wanted = args.sizes
    with group_of_ranks("bench") as group:
        names = group.transport.algorithms
        found = {
            name: [_measure(group, name, size, args.streams) for size in wanted]
            for name in names
        }
        if group.rank() != 0:
            return 0
        hosts = [len(ranks) for ranks in group.transport.hosts]
    if args.json:
        report = {"ranks_per_host": hosts, "sizes_bytes": wanted, "seconds": found}
        print(json.dumps(report, indent=2))
        return 0
    rows = [["size", *names]]
    for at, size in enumerate(wanted):
        best = min(found[name][at] for name in names)
        cells = [_cell(found[name][at], best) for name in names]
        rows.append([human(size), *cells])
    print_table(f"all-reduce on hosts with {hosts} ranks, milliseconds", rows)
    return 0


def _cell(seconds: float, best: float) -> str:
    text = f"{seconds * 1e3:.3g}"
    return f"[bold]{text}[/]" if seconds == best else text


def _measure(group: TunedProcessGroup, name: str, size: int, streams: int) -> float:
    """Returns the median time of an all-reduce, of the slowest rank."""
    import torch

    vector = torch.zeros(size // 4)
    choice = Choice(algorithm=name, num_streams=streams)

    def once() -> None:
        if name == STOCK:
            group.inner.allreduce([vector]).wait()
        else:
            group.reduce_pieces([vector], "SUM", choice).finish()

    once()
    first = _timed(once)
    (slowest,) = group.agree_on_most([first])
    num = int(min(max(_ENOUGH_S / slowest, _NUM_LEAST), _NUM_MOST))
    median = statistics.median(_timed(once) for _ in range(num))
    (slowest,) = group.agree_on_most([median])
    if group.rank() == 0 and sys.stderr.isatty():
        sys.stderr.write(f"{name}, {human(size)}: {slowest * 1e3:.3g} ms\n")
    return slowest


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
