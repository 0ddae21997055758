"""What no schedule can beat on a graph, with the reason."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from drivetrain_comm.compiler._errors import ScheduleError
from drivetrain_comm.compiler._graph import rank_of
from drivetrain_comm.compiler._schedule import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from drivetrain_comm.compiler._graph import LinkGraph

_ALL_SETS = 10  # ranks: there are 2^10 sets of them
_ALL_PARTITIONS = 8  # ranks: there are 4140 ways to part them

_MOST_NAMED = 3  # wires
# The two ends of a flow; names of places are printable.
_IN, _OUT = "\0in", "\0out"

_Part = frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The least time of a collective.

    Args:
        seconds: The time.
        because: What takes it.
    """

    seconds: float
    because: str


def lower_bound(
    graph: LinkGraph, collective: str, size_bytes: float, root: int = 0
) -> Bound:
    """Returns a time that no schedule can beat.

    The largest of these, with M bytes in a vector, W ranks, and C(S) what the wires
    out of a set S of n ranks carry at most (a minimum cut):

    - What must leave a set. all_gather: M n / W; reduce_scatter: M (W - n) / W;
      broadcast: M, if the root is in S; all_reduce: M.
    - What all parts of a partition into m must send together. In an all-reduce each
      element takes 2 (m - 1) messages between parts, since so many one-way messages
      tell m people all (Harary and Schwenk, "The communication problem on graphs and
      digraphs", 1974): M 2 (m - 1) over the sum of C. In the other two m - 1.
    - The longest way between two ranks (of a broadcast, from its root), which some
      contribution goes.

    Args:
        graph: The links.
        collective: Which one.
        size_bytes: Of the vector: all that all_gather gives, or reduce_scatter takes.
        root: Of a broadcast.

    In all_gather and reduce_scatter all ranks own as much of the vector.

    Raises:
        ScheduleError: There is no such collective, or no such root.

    Example:
        >>> from drivetrain_comm.compiler import star
        >>> lower_bound(star([1e9] * 4), "all_reduce", 1e9).seconds
        1.5
        >>> lower_bound(star([1e9, 1e9, 1e9, 1e8]), "all_reduce", 1e9)
        Bound(seconds=10.0, because='what must leave rank 3 over r3 -> switch')
    """
    if collective not in COLLECTIVES or root not in graph.ranks:
        message = (
            f"collective must be one of {', '.join(COLLECTIVES)}, and root a rank of "
            f"{graph.num_ranks}, got {collective!r} and {root}"
        )
        raise ScheduleError(message)
    capacity = _Capacity(graph)
    found = [_longest_way(graph, [root] if collective == "broadcast" else graph.ranks)]
    found += _cuts(graph, collective, size_bytes, root, capacity)
    if collective != "broadcast":
        found += _partitions(graph, collective, size_bytes, capacity)
    return max(found, key=lambda bound: bound.seconds)


class _Capacity:
    """What leaves sets of ranks."""

    def __init__(self, graph: LinkGraph) -> None:
        self._graph = graph
        self._found: dict[_Part, tuple[float, list[str]]] = {}

    def leaving(self, inside: _Part) -> float:
        """Returns the capacity."""
        return self._cut(inside)[0]

    def wires(self, inside: _Part) -> str:
        """Returns the wires of the cut: `r3 -> switch`."""
        labels = self._cut(inside)[1]
        more = (
            f" and {len(labels) - _MOST_NAMED} more"
            if len(labels) > _MOST_NAMED
            else ""
        )
        return ", ".join(labels[:_MOST_NAMED]) + more

    def _cut(self, inside: _Part) -> tuple[float, list[str]]:
        if inside not in self._found:
            outside = [rank for rank in self._graph.ranks if rank not in inside]
            self._found[inside] = _min_cut(self._graph, inside, outside)
        return self._found[inside]


def _longest_way(graph: LinkGraph, sources: Iterable[int]) -> Bound:
    pairs = ((a, b) for a in sources for b in graph.ranks if a != b)
    a, b = max(pairs, key=lambda pair: graph.delay_s(*pair))
    return Bound(seconds=graph.delay_s(a, b), because=f"the way from {a} to {b}")


def _cuts(
    graph: LinkGraph,
    collective: str,
    size_bytes: float,
    root: int,
    capacity: _Capacity,
) -> Iterator[Bound]:
    size = graph.num_ranks
    for inside in _sets(graph):
        share = {
            "all_gather": len(inside) / size,
            "reduce_scatter": 1 - len(inside) / size,
            "broadcast": float(root in inside),
            "all_reduce": 1.0,
        }[collective]
        outside = [rank for rank in graph.ranks if rank not in inside]
        delay_s = min(graph.delay_s(a, b) for a in inside for b in outside)
        if share:
            seconds = share * size_bytes / capacity.leaving(inside) + delay_s
            because = f"what must leave {_named(inside)} over {capacity.wires(inside)}"
            yield Bound(seconds=seconds, because=because)


def _partitions(
    graph: LinkGraph, collective: str, size_bytes: float, capacity: _Capacity
) -> Iterator[Bound]:
    times = 2 if collective == "all_reduce" else 1
    for parts in _parts(graph):
        together = sum(capacity.leaving(part) for part in parts)
        seconds = times * (len(parts) - 1) * size_bytes / together
        names = ", ".join(_named(part) for part in parts)
        yield Bound(seconds=seconds, because=f"what all of {names} send")


def _named(part: _Part) -> str:
    ranks = sorted(part)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks}"


def _sets(graph: LinkGraph) -> Iterator[_Part]:
    ranks = list(graph.ranks)
    if len(ranks) <= _ALL_SETS:
        for num in range(1, len(ranks)):
            yield from map(frozenset, combinations(ranks, num))
        return
    everyone = frozenset(ranks)
    for group in {*map(frozenset, ([r] for r in ranks)), *_near(graph)}:
        yield group
        yield everyone - group


def _parts(graph: LinkGraph) -> Iterable[Sequence[_Part]]:
    ranks = list(graph.ranks)
    if len(ranks) <= _ALL_PARTITIONS:
        return (p for p in _all_partitions(ranks) if len(p) > 1)
    found: list[Sequence[_Part]] = [[frozenset([rank]) for rank in ranks]]
    near = sorted(_near(graph), key=lambda group: (len(group), min(group)))
    for length in {len(group) for group in near}:
        parts = [group for group in near if len(group) == length]
        if len(parts) > 1 and sum(map(len, parts)) == len(ranks):
            found.append(parts)
    return found


def _all_partitions(ranks: list[int]) -> Iterator[list[_Part]]:
    if not ranks:
        yield []
        return
    first, rest = ranks[0], ranks[1:]
    for parts in _all_partitions(rest):
        yield [frozenset([first]), *parts]
        for i, part in enumerate(parts):
            yield [*parts[:i], part | {first}, *parts[i + 1 :]]


def _near(graph: LinkGraph) -> set[_Part]:
    """Returns groups of ranks that have the same switch above them, and so on up."""
    above: dict[str, set[str]] = {}
    for wire in graph.wires:
        above.setdefault(wire.source, set()).add(wire.target)
    groups = {f"r{rank}": {rank} for rank in graph.ranks}
    found: set[_Part] = set()
    for _ in range(3):
        wider: dict[str, set[int]] = {}
        for place, members in groups.items():
            for target in above.get(place, ()):
                if rank_of(target) is None:
                    wider.setdefault(target, set()).update(members)
        found |= {frozenset(m) for m in wider.values() if len(m) < graph.num_ranks}
        groups = wider
    return found


def _min_cut(
    graph: LinkGraph, inside: Iterable[int], outside: Iterable[int]
) -> tuple[float, list[str]]:
    """Returns what flows at most from some ranks to others, and the wires that limit it.

    By the shortest ways that are left (Edmonds and Karp, 1972).
    """
    left: dict[str, dict[str, float]] = {}
    for wire in graph.wires:
        left.setdefault(wire.source, {})[wire.target] = wire.bytes_per_s
        left.setdefault(wire.target, {}).setdefault(wire.source, 0.0)
    for rank in inside:
        left.setdefault(_IN, {})[f"r{rank}"] = math.inf
    for rank in outside:
        left.setdefault(f"r{rank}", {})[_OUT] = math.inf
    total = 0.0
    # What rounding leaves is nothing.
    least = 1e-12 * max(wire.bytes_per_s for wire in graph.wires)
    while True:
        came = _reached(left, least)
        if _OUT not in came:
            cut = [
                w.label
                for w in graph.wires
                if w.source in came and w.target not in came
            ]
            return total, cut
        way = _way_to_end(came)
        width = min(left[a][b] for a, b in way)
        for a, b in way:
            left[a][b] -= width
            left.setdefault(b, {})[a] = left.get(b, {}).get(a, 0.0) + width
        total += width


def _reached(left: dict[str, dict[str, float]], least: float) -> dict[str, str]:
    """Returns all places that are reached, each with the place before it."""
    came = {_IN: ""}
    queue = deque([_IN])
    while queue and _OUT not in came:
        at = queue.popleft()
        for target, width in left.get(at, {}).items():
            if width > least and target not in came:
                came[target] = at
                queue.append(target)
    return came


def _way_to_end(came: dict[str, str]) -> list[tuple[str, str]]:
    way = []
    at = _OUT
    while came[at]:
        way.append((came[at], at))
        at = came[at]
    return way
