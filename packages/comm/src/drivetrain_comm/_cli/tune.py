"""`drivetrain comm tune`: what the network carries, and what would be chosen on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_comm._cli.common import group_of_ranks, human, print_table, sizes

if TYPE_CHECKING:
    import argparse

    from drivetrain_comm._cost import Network

__all__ = ["populate"]


def populate(commands: Any) -> None:
    """Adds the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tune",
        help="measure the network, and show what is chosen on it by size",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--sizes",
        default="4K,64K,1M,16M,256M",
        help="such as 4K,1M (the default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    wanted = sizes(args.sizes)
    with group_of_ranks("tune") as group:
        if group.transport.lacks:
            from drivetrain_core import DistributedError

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
