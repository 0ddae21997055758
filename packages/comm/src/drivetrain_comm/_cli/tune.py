"""`drivetrain comm tune`: what the network carries, and what would be chosen on it.

With `--nccl` it makes a table for NCCL out of what a benchmark has measured.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_comm._cli.common import group_of_ranks, human
from drivetrain_comm.nccl import (
    environment_of,
    find_winners,
    format_table,
    load_measurements,
    table_from,
)
from drivetrain_core import DistributedError, MissingLibraryError
from drivetrain_core.commands import UsageError
from drivetrain_core.tables import print_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from drivetrain_comm.nccl import Table, Winner
    from drivetrain_comm.selection._cost import Network


def run(args: argparse.Namespace) -> int:
    """Carries out the command, and returns the exit status."""
    if (args.nccl is None) != (args.out is None):
        message = "--nccl RESULTS and --out TABLE go together"
        raise UsageError(message)
    return _measure(args) if args.nccl is None else _make_table(args)


def _make_table(args: argparse.Namespace) -> int:
    found = [one for file in args.nccl for one in load_measurements(file)]
    table, winners = table_from(found), find_winners(found)
    Path(args.out).write_text(format_table(table), encoding="utf-8")
    if args.json:
        report = {
            "hash": table.hash,
            "rules": [asdict(rule) for rule in table.rules],
            "winners": [asdict(winner) for winner in winners],
        }
        print(json.dumps(report, indent=2))
        return 0
    header = ["collective", "ranks", "sizes", "choice", "gain"]
    rows = [header, *_rows_of(table, winners)]
    print_table(f"rules: {len(table.rules)}, hash {table.hash[:16]}", rows)
    num_left = sum(winner.choice is None for winner in winners)
    print(f"NCCL decides the rest: {num_left} of {len(winners)} sizes.")
    print(f"Use it by drivetrain_comm.nccl.enable_tuner({args.out!r}), which compares")
    print("the ranks, or without that by these variables, on all of them:")
    try:
        variables = environment_of(args.out)
    except MissingLibraryError as error:
        # The table may be for other machines.
        print(error)
        return 0
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def _rows_of(table: Table, winners: Sequence[Winner]) -> list[list[str]]:
    rows = []
    for rule in table.rules:
        mine = [
            winner
            for winner in winners
            if winner.choice is not None
            and rule.decides(
                winner.place[0],
                winner.size_bytes,
                ranks=winner.place[1],
                nodes=winner.place[2],
            )
        ]
        gains = [winner.default_us / winner.time_us for winner in mine]
        span = [human(mine[0].size_bytes), human(mine[-1].size_bytes)]
        channels = f", {rule.channels} channels" if rule.channels else ""
        rows.append(
            [
                rule.collective,
                f"{rule.ranks} on {rule.nodes}",
                " to ".join(dict.fromkeys(span)),
                f"{rule.algorithm} {rule.protocol}{channels}",
                f"{min(gains):.2f} to {max(gains):.2f} x",
            ]
        )
    return rows


def _measure(args: argparse.Namespace) -> int:
    wanted = args.sizes
    with group_of_ranks("tune") as group:
        if group.transport.lacks:
            raise DistributedError(group.transport.lacks)
        group.measure_network()
        if group.rank() != 0:
            return 0
        network, hosts = group.network, group.transport.hosts
        choices = {size: group.choose(size) for size in wanted}
    if args.json:
        report = {
            "hosts": hosts,
            "network": asdict(network),
            "choices": {size: asdict(choice) for size, choice in choices.items()},
        }
        print(json.dumps(report, indent=2))
        return 0
    several = len(hosts) > 1
    rows = [
        ["between hosts", "measured"],
        ["delay, one way", f"{network.delay_s * 1e3:.2f} ms" if several else "-"],
        ["one connection", _rate(network.flow_bytes_per_s) if several else "-"],
        ["all of a host", _rate(network.port_bytes_per_s) if several else "-"],
        ["within a host", f"{network.local_bytes_per_s / 1e9:.2f} GB/s"],
    ]
    if several:
        rows.append(["socket buffers", _buffers(network)])
    print_table(f"hosts with {[len(r) for r in hosts]} ranks", rows)
    pairs = [[human(size), str(choice)] for size, choice in choices.items()]
    print_table("what is chosen", [["all-reduce of", "algorithm"], *pairs])
    return 0


def _buffers(network: Network) -> str:
    """Says whether the kernel lets one connection keep the whole way filled."""
    needed = int(2 * network.delay_s * network.port_bytes_per_s)
    limits = Path("/proc/sys/net/ipv4/tcp_wmem")
    if not limits.exists():
        return f"{human(needed)} are under way"
    most = int(limits.read_text().split()[2])
    # A sender keeps what is under way, and as much again while it is acknowledged.
    if most >= 2 * needed:
        return f"enough: {human(needed)} are under way, {human(most)} may be kept"
    return (
        f"{human(needed)} are under way, but {human(most)} may be kept: raise "
        f"net.ipv4.tcp_wmem and tcp_rmem to {2 * needed}"
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8e-6:.0f} Mbit/s"
