"""The links between ranks, with the switches in between: what schedules are made for.

A resource that several links share, such as the network card of a host or an uplink, is
a switch with one link: all that passes it shares that link's speed.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property

from drivetrain_comm.compiler._errors import LinkGraphError

__all__ = ["LinkGraph", "Wire", "degraded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """A link in one direction.

    Args:
        source: Where it begins: `r0` for rank 0, or the name of a switch.
        target: Where it ends.
        bytes_per_s: What it carries.
        delay_s: How long the first byte takes.
    """

    source: str
    target: str
    bytes_per_s: float
    delay_s: float = 0.0

    @property
    def label(self) -> str:
        """`r0 -> leaf1`."""
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, kw_only=True)
class LinkGraph:
    """Ranks and the wires between them.

    Args:
        name: What it is called.
        num_ranks: Its ranks are 0 to `num_ranks - 1`.
        wires: Each direction on its own; at most one from one place to another.

    Raises:
        LinkGraphError: A number is out of range, a wire is doubled, or a rank cannot
            reach another.

    Example:
        >>> graph = LinkGraph(name="pair", num_ranks=2, wires=(
        ...     Wire(source="r0", target="r1", bytes_per_s=1e9),
        ...     Wire(source="r1", target="r0", bytes_per_s=2e9)))
        >>> [wire.label for wire in graph.route(0, 1)]
        ['r0 -> r1']
    """

    name: str
    num_ranks: int
    wires: tuple[Wire, ...]

    def __post_init__(self) -> None:
        """Checks each wire, and that all ranks reach each other."""
        if self.num_ranks < 2:
            message = (
                f"{self.name}: two ranks are needed at least, got {self.num_ranks}"
            )
            raise LinkGraphError(message)
        seen = set()
        for wire in self.wires:
            self._check_wire(wire)
            if (wire.source, wire.target) in seen:
                message = f"{self.name}: there are two wires {wire.label}; add them up"
                raise LinkGraphError(message)
            seen.add((wire.source, wire.target))
        for source in range(self.num_ranks):
            for target in range(self.num_ranks):
                if source != target and (source, target) not in self._routes:
                    message = (
                        f"{self.name}: rank {source} does not reach rank {target}; in "
                        f"wires they are r{source} and r{target}"
                    )
                    raise LinkGraphError(message)

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.num_ranks)

    def route(self, source: int, target: int) -> tuple[Wire, ...]:
        """Returns the wires between two ranks that no other rank lies on.

        Of several ways it is the widest, of these the one with the least delay. Ranks
        without such a way have none: what they exchange, others pass on.

        Args:
            source: A rank.
            target: Another.

        Returns:
            The wires, or nothing.
        """
        found = self._routes[source, target]
        return found if self._is_direct(found) else ()

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of ranks with a way that no other rank lies on."""
        return tuple(pair for pair, way in self._routes.items() if self._is_direct(way))

    def delay_s(self, source: int, target: int) -> float:
        """Returns the least delay between two ranks, whoever passes it on."""
        return self._delays[source][target]

    @cached_property
    def _delays(self) -> list[list[float]]:
        found = []
        for rank in self.ranks:
            least = {f"r{rank}": 0.0}
            heap = [(0.0, f"r{rank}")]
            while heap:
                so_far, at = heapq.heappop(heap)
                if so_far > least[at]:
                    continue
                for wire in self._leaving.get(at, ()):
                    then = so_far + wire.delay_s
                    if then < least.get(wire.target, math.inf):
                        least[wire.target] = then
                        heapq.heappush(heap, (then, wire.target))
            found.append([least.get(f"r{r}", math.inf) for r in self.ranks])
        return found

    @cached_property
    def _leaving(self) -> dict[str, list[Wire]]:
        found: dict[str, list[Wire]] = {}
        for wire in self.wires:
            found.setdefault(wire.source, []).append(wire)
        return found

    @cached_property
    def _routes(self) -> dict[tuple[int, int], tuple[Wire, ...]]:
        names = {f"r{rank}": rank for rank in self.ranks}
        found = {}
        for rank in self.ranks:
            for name, way in self._widest(f"r{rank}").items():
                if name in names and names[name] != rank:
                    found[rank, names[name]] = way
        return found

    def _widest(self, start: str) -> dict[str, tuple[Wire, ...]]:
        """Returns the widest way to each place, through switches where there is one."""
        # Those with a rank inside come last, whatever their width.
        best: dict[str, tuple[bool, float, float]] = {start: (False, -math.inf, 0.0)}
        ways: dict[str, tuple[Wire, ...]] = {start: ()}
        heap = [(best[start], start)]
        while heap:
            cost, at = heapq.heappop(heap)
            if cost > best[at]:
                continue
            passes = cost[0] or (at != start and self._rank_of(at) is not None)
            for wire in self._leaving.get(at, ()):
                width = max(cost[1], -wire.bytes_per_s)
                then = (passes, width, cost[2] + wire.delay_s)
                if wire.target not in best or then < best[wire.target]:
                    best[wire.target] = then
                    ways[wire.target] = (*ways[at], wire)
                    heapq.heappush(heap, (then, wire.target))
        del ways[start]
        return ways

    def _is_direct(self, way: tuple[Wire, ...]) -> bool:
        return all(self._rank_of(wire.target) is None for wire in way[:-1])

    def _rank_of(self, place: str) -> int | None:
        if place[:1] == "r" and place[1:].isdecimal():
            return int(place[1:])
        return None

    def _check_wire(self, wire: Wire) -> None:
        for place in (wire.source, wire.target):
            rank = self._rank_of(place)
            if not place or (rank is not None and rank >= self.num_ranks):
                message = (
                    f"{self.name}: the wire {wire.label} ends at {place!r}, and ranks "
                    f"are r0 to r{self.num_ranks - 1}"
                )
                raise LinkGraphError(message)
        if wire.source == wire.target:
            message = f"{self.name}: the wire {wire.label} leads nowhere"
            raise LinkGraphError(message)
        if not 0 < wire.bytes_per_s < math.inf:
            message = (
                f"{self.name}: {wire.label} must carry more than 0 bytes_per_s, got "
                f"{wire.bytes_per_s}"
            )
            raise LinkGraphError(message)
        if not 0 <= wire.delay_s < math.inf:
            message = (
                f"{self.name}: the delay_s of {wire.label} must be 0 or more, got "
                f"{wire.delay_s}"
            )
            raise LinkGraphError(message)


def degraded(graph: LinkGraph, source: str, target: str, share: float) -> LinkGraph:
    """Returns a graph in which one wire carries only a share, in that direction.

    Args:
        graph: As it was.
        source: Where the wire begins.
        target: Where it ends.
        share: Of what it carried; 0 removes it.

    Raises:
        LinkGraphError: There is no such wire, or ranks are cut off.
    """
    if (source, target) not in {(w.source, w.target) for w in graph.wires}:
        message = f"{graph.name}: there is no wire {source} -> {target}"
        raise LinkGraphError(message)
    wires = [
        Wire(
            source=wire.source,
            target=wire.target,
            bytes_per_s=wire.bytes_per_s * share,
            delay_s=wire.delay_s,
        )
        if (wire.source, wire.target) == (source, target)
        else wire
        for wire in graph.wires
    ]
    return LinkGraph(
        name=f"{graph.name}, {source} -> {target} x {share:g}",
        num_ranks=graph.num_ranks,
        wires=tuple(w for w in wires if w.bytes_per_s > 0),
    )
