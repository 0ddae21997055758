"""Graphs that often occur."""

from __future__ import annotations

from itertools import permutations, product
from typing import TYPE_CHECKING, Protocol

from drivetrain_comm.compiler._errors import LinkGraphError
from drivetrain_comm.compiler._graph import LinkGraph, Wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class MeasuredLinks(Protocol):
    """What was measured between ranks, such as drivetrain-fabric's `LinkMatrix`.

    Attributes:
        delay_s: How long a short message takes from the rank of a row to the rank of a
            column, one way, in seconds.
        bytes_per_s: What long messages carry from row to column.
    """

    @property
    def delay_s(self) -> Sequence[Sequence[float]]: ...

    @property
    def bytes_per_s(self) -> Sequence[Sequence[float]]: ...


def _both(a: str, b: str, bytes_per_s: float, delay_s: float) -> tuple[Wire, Wire]:
    """Returns the two directions of a link."""
    there = Wire(source=a, target=b, bytes_per_s=bytes_per_s, delay_s=delay_s)
    back = Wire(source=b, target=a, bytes_per_s=bytes_per_s, delay_s=delay_s)
    return there, back


def star(bytes_per_s: Sequence[float], delay_s: float = 0.0) -> LinkGraph:
    """Returns ranks on one switch, each with a link of its own.

    Args:
        bytes_per_s: What each rank's link carries, in each direction.
        delay_s: From one rank to another.

    Example:
        >>> star([1e9, 1e9, 2e9]).name
        'star of 3'
    """
    wires = [
        wire
        for rank, rate in enumerate(bytes_per_s)
        for wire in _both(f"r{rank}", "switch", rate, delay_s / 2)
    ]
    size = len(bytes_per_s)
    return LinkGraph(name=f"star of {size}", num_ranks=size, wires=tuple(wires))


def ring(num_ranks: int, bytes_per_s: float, delay_s: float = 0.0) -> LinkGraph:
    """Returns ranks in a ring, linked to both neighbours."""
    pairs = {tuple(sorted((r, (r + 1) % num_ranks))) for r in range(num_ranks)}
    return _meshed(f"ring of {num_ranks}", num_ranks, pairs, bytes_per_s, delay_s)


def full_mesh(num_ranks: int, bytes_per_s: float, delay_s: float = 0.0) -> LinkGraph:
    """Returns ranks with a link between any two, as NVLinks between four GPUs."""
    pairs = {(a, b) for b in range(num_ranks) for a in range(b)}
    return _meshed(f"mesh of {num_ranks}", num_ranks, pairs, bytes_per_s, delay_s)


def torus(
    rows: int, columns: int, bytes_per_s: float, delay_s: float = 0.0
) -> LinkGraph:
    """Returns ranks on a grid whose rows and columns are rings."""
    pairs = set()
    for row, column in product(range(rows), range(columns)):
        at = row * columns + column
        right = row * columns + (column + 1) % columns
        below = (row + 1) % rows * columns + column
        pairs |= {tuple(sorted((at, other))) for other in (right, below) if other != at}
    name = f"torus of {rows} x {columns}"
    return _meshed(name, rows * columns, pairs, bytes_per_s, delay_s)


def hosts(
    nic_bytes_per_s: Sequence[float],
    ranks_per_host: int,
    local_bytes_per_s: float,
    delay_s: float = 0.0,
    local_delay_s: float = 0.0,
) -> LinkGraph:
    """Returns hosts on one switch; the ranks of a host have one of their own.

    Args:
        nic_bytes_per_s: What the network card of each host carries, each way.
        ranks_per_host: How many ranks share it.
        local_bytes_per_s: What each rank carries within its host, each way.
        delay_s: Between hosts.
        local_delay_s: Between ranks of a host.

    Example:
        >>> graph = hosts([1e9, 1e9], 2, 10e9)
        >>> [wire.label for wire in graph.route(0, 3)]
        ['r0 -> host0', 'host0 -> fabric', 'fabric -> host1', 'host1 -> r3']
    """
    wires: list[Wire] = []
    for host, rate in enumerate(nic_bytes_per_s):
        wires += _both(f"host{host}", "fabric", rate, delay_s / 2)
        for local in range(ranks_per_host):
            rank = f"r{host * ranks_per_host + local}"
            wires += _both(rank, f"host{host}", local_bytes_per_s, local_delay_s / 2)
    return LinkGraph(
        name=f"{len(nic_bytes_per_s)} hosts of {ranks_per_host}",
        num_ranks=len(nic_bytes_per_s) * ranks_per_host,
        wires=tuple(wires),
    )


def from_matrix(matrix: MeasuredLinks, *, shares_ports: bool = True) -> LinkGraph:
    """Returns the graph of measured links.

    Args:
        matrix: What was measured between ranks.
        shares_ports: Whether all that a rank sends shares what its fastest link
            carries, and all that it receives likewise, as on one network card.

    Raises:
        LinkGraphError: The two are not square, not of one size, or hold a number that is
            out of range.
    """
    rates, delays = matrix.bytes_per_s, matrix.delay_s
    size = len(rates)
    if len(delays) != size or any(len(row) != size for row in (*rates, *delays)):
        message = f"bytes_per_s and delay_s must both have {size} rows and columns"
        raise LinkGraphError(message)
    wires: list[Wire] = []
    for rank in range(size) if shares_ports else ():
        out = max(rates[rank])
        back = max(row[rank] for row in rates)
        wires.append(Wire(source=f"r{rank}", target=f"out{rank}", bytes_per_s=out))
        wires.append(Wire(source=f"in{rank}", target=f"r{rank}", bytes_per_s=back))
    ends = ("out", "in") if shares_ports else ("r", "r")
    wires += [
        Wire(
            source=f"{ends[0]}{a}",
            target=f"{ends[1]}{b}",
            bytes_per_s=rates[a][b],
            delay_s=delays[a][b],
        )
        for a, b in permutations(range(size), 2)
    ]
    return LinkGraph(name=f"{size} ranks", num_ranks=size, wires=tuple(wires))


def _meshed(
    name: str,
    num_ranks: int,
    pairs: Iterable[tuple[int, ...]],
    bytes_per_s: float,
    delay_s: float,
) -> LinkGraph:
    if num_ranks < 2:
        message = f"{name}: two ranks are needed at least"
        raise LinkGraphError(message)
    wires = [
        wire
        for a, b in sorted(pairs)
        for wire in _both(f"r{a}", f"r{b}", bytes_per_s, delay_s)
    ]
    return LinkGraph(name=name, num_ranks=num_ranks, wires=tuple(wires))
