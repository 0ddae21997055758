"""Hosts and measured links as text: a tree and a table, in colours on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from drivetrain_fabric.topology._affinity import distance, nearest_nic, nvlinks_of
from drivetrain_fabric.topology._cluster import find_flaws, find_hosts
from drivetrain_fabric.topology._order import ring_order
from drivetrain_fabric.topology._parts import Gpu
from drivetrain_fabric.topology._tree import Branch, numa_tree
from drivetrain_fabric.topology._units import scale
from drivetrain_fabric.topology._words import (
    device_name,
    device_words,
    node_words,
    summary_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from drivetrain_fabric.topology._graph import Topology
    from drivetrain_fabric.topology._matrix import LinkMatrix
    from drivetrain_fabric.topology._tree import Device

_STYLES = {"node": "bold", "switch": "yellow", "gpu": "green", "nic": "cyan"}
_STYLES["off"] = "dim"


@dataclass(frozen=True, slots=True)
class _Line:
    depth: int
    kind: str
    text: str


def host_text(topology: Topology) -> str:
    """Returns a host as plain text.

    Args:
        topology: The host.

    Example:
        >>> from drivetrain_fabric.topology import Nic, NumaNode, Topology
        >>> host = Topology(
        ...     name="a", numa_nodes=(NumaNode(index=0, cpus="0-3"),),
        ...     nics=(Nic(name="eth0", speed_mbit_per_s=10_000, mtu=1500),))
        >>> print(host_text(host))
        a: 1 x 10 Gb/s, 1 NUMA node
          NUMA node 0, CPUs 0-3
            eth0, 10 Gb/s, mtu 1500
    """
    title = f"{topology.name}: {summary_words(topology)}"
    lines = [f"{'  ' * line.depth}{line.text}" for line in _lines(topology)]
    parts = [[title, *lines]]
    if topology.gpus:
        parts.append(_plain(_distances(topology)))
    parts.append([f"note: {note}" for note in topology.notes])
    return "\n\n".join("\n".join(part) for part in parts if part)


def host_rich(topology: Topology) -> list[RenderableType]:
    """Returns a host as what a `rich.console.Console` prints.

    Args:
        topology: The host.
    """
    tree = Tree(Text(f"{topology.name}: {summary_words(topology)}", "bold"))
    at = [tree]
    for line in _lines(topology):
        del at[line.depth :]
        at.append(at[-1].add(Text(line.text, _STYLES[line.kind])))
    found: list[RenderableType] = [tree]
    if topology.gpus:
        found.append(_table("Distances", _distances(topology)))
    return [*found, *(Text(f"note: {note}", "yellow") for note in topology.notes)]


def links_text(
    matrix: LinkMatrix, *, hosts: Iterable[Sequence[int]] | None = None
) -> str:
    """Returns measured links as plain text.

    Args:
        matrix: What was measured.
        hosts: The ranks of each host; by default what `find_hosts` finds.

    Raises:
        TopologyError: `hosts` do not fit.
    """
    parts = [[title, *_plain(rows)] for title, rows in _link_tables(matrix)]
    parts.append(_verdict(matrix, hosts))
    return "\n\n".join("\n".join(part) for part in parts)


def links_rich(
    matrix: LinkMatrix, *, hosts: Iterable[Sequence[int]] | None = None
) -> list[RenderableType]:
    """Returns measured links as what a `rich.console.Console` prints.

    Args:
        matrix: What was measured.
        hosts: The ranks of each host; by default what `find_hosts` finds.

    Raises:
        TopologyError: `hosts` do not fit.
    """
    tables = [_table(title, rows) for title, rows in _link_tables(matrix)]
    return [*tables, *(Text(line) for line in _verdict(matrix, hosts))]


def _lines(topology: Topology) -> Iterator[_Line]:
    for branch in numa_tree(topology):
        yield _Line(1, "node", ", ".join(filter(None, node_words(branch.node))))
        for root in branch.roots:
            yield from _branch_lines(topology, root, 2)
        for device in branch.devices:
            yield _device_line(topology, device, 2)


def _branch_lines(topology: Topology, branch: Branch, depth: int) -> Iterator[_Line]:
    if not branch.is_root:
        yield _Line(depth, "switch", f"PCIe switch {branch.name}")
        depth += 1
    for device in branch.devices:
        yield _device_line(topology, device, depth)
    for switch in branch.switches:
        yield from _branch_lines(topology, switch, depth)


def _device_line(topology: Topology, device: Device, depth: int) -> _Line:
    words = " ".join(filter(None, device_name(device)))
    parts = [words, *filter(None, device_words(topology, device))]
    if not isinstance(device, Gpu):
        return _Line(depth, "nic" if device.is_up else "off", ", ".join(parts))
    ends = nvlinks_of(topology, device.label)
    if ends:
        parts[-1] += f" to {', '.join(ends)}"
    nic = nearest_nic(topology, device.label)
    if nic is not None:
        parts.append(f"use {nic.name}")
    return _Line(depth, "gpu", ", ".join(parts))


def _distances(topology: Topology) -> list[list[str]]:
    gpus = [gpu.label for gpu in topology.gpus]
    others = [*gpus, *(nic.name for nic in topology.nics)]
    rows = [[a, *(distance(topology, a, b) for b in others)] for a in gpus]
    return [["", *others], *rows]


def _link_tables(matrix: LinkMatrix) -> Iterator[tuple[str, list[list[str]]]]:
    names = [str(rank) for rank in matrix.ranks]
    kinds = (
        ("Speed", "B/s", matrix.bytes_per_s),
        ("Delay, one way", "s", matrix.delay_s),
    )
    for title, unit, values in kinds:
        size, prefix = scale(max(map(max, values)) or 1.0)
        rows = [["", *names]]
        for name, row in zip(names, values, strict=True):
            cells = (f"{value / size:.3g}" for value in row)
            rows.append([name, *cells])
            rows[-1][len(rows) - 1] = "-"
        yield f"{title} in {prefix}{unit}, from row to column", rows


def _verdict(matrix: LinkMatrix, hosts: Iterable[Sequence[int]] | None) -> list[str]:
    groups = [list(h) for h in (find_hosts(matrix) if hosts is None else hosts)]
    by_host = "; ".join(" ".join(map(str, host)) for host in groups)
    ring = " ".join(map(str, ring_order(matrix, hosts=groups)))
    flaws = find_flaws(matrix, hosts=groups)
    lines = [f"Ranks that are near to each other: {by_host}", f"Ring: {ring}"]
    return [*lines, *(f"Flaw: {flaw.message}" for flaw in flaws)]


def _plain(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _table(title: str, rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows[1:]:
        table.add_row(*row)
    return table
