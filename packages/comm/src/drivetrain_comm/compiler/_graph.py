"""The links between ranks, with the switches in between: what schedules are made for.

A resource that several links share, such as the network card of a host or an uplink, is
a switch with one link: all that passes it shares that link's speed.
"""

from __future__ import annotations

import functools
import heapq
import math
import operator
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from drivetrain_comm.compiler._errors import LinkGraphError

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANK = re.compile(r"r(0|[1-9][0-9]{0,8})")
_LIKE_RANK = re.compile(r"r[0-9]+")


def rank_of(place: str) -> int | None:
    """Returns the rank that a wire's end is, or None for a switch.

    Example:
        >>> rank_of("r12"), rank_of("rack1")
        (12, None)
    """
    found = _RANK.fullmatch(place)
    return int(found[1]) if found else None


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
        if not self.name.isprintable():
            message = f"the name of a graph must be printable, got {self.name!r}"
            raise LinkGraphError(message)
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
        lonely = self.num_ranks - len({rank_of(w.source) for w in self.wires} - {None})
        if lonely > 0:
            message = (
                f"{self.name}: {lonely} of {self.num_ranks} ranks have no wire out"
            )
            raise LinkGraphError(message)
        for source in self.ranks:
            for target in self.ranks:
                if self.delay_s(source, target) == math.inf:
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
        return self._routes.get((source, target), ())

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of ranks with a way that no other rank lies on."""
        return tuple(sorted(self._routes))

    def delay_s(self, source: int, target: int) -> float:
        """Returns the least delay between two ranks, whoever passes it on."""
        return self._delays[f"r{source}"].get(f"r{target}", math.inf)

    def quickest(self) -> LinkGraph:
        """Returns the graph without wires that delay longer than a way around them."""
        wires = tuple(
            wire
            for wire in self.wires
            if wire.delay_s <= self._delays[wire.source][wire.target] * (1 + 1e-9)
        )
        return self if len(wires) == len(self.wires) else replace(self, wires=wires)

    @cached_property
    def _delays(self) -> dict[str, dict[str, float]]:
        found = {}
        for place in {*self._leaving, *(f"r{rank}" for rank in self.ranks)}:
            least = found[place] = {place: 0.0}
            heap = [(0.0, place)]
            while heap:
                so_far, at = heapq.heappop(heap)
                if so_far > least[at]:
                    continue
                for wire in self._leaving.get(at, ()):
                    then = so_far + wire.delay_s
                    if then < least.get(wire.target, math.inf):
                        least[wire.target] = then
                        heapq.heappush(heap, (then, wire.target))
        return found

    @cached_property
    def _leaving(self) -> dict[str, list[Wire]]:
        found: dict[str, list[Wire]] = {}
        for wire in self.wires:
            found.setdefault(wire.source, []).append(wire)
        return found

    @cached_property
    def _routes(self) -> dict[tuple[int, int], tuple[Wire, ...]]:
        found = {}
        for rank in self.ranks:
            widths = self._widths(rank)
            for width in set(widths.values()):
                for target, way in self._nearest(rank, width).items():
                    if widths[target] == width:
                        found[rank, target] = way
        return found

    def _widths(self, rank: int) -> dict[int, float]:
        """Returns the width of the widest way to each rank, without ranks in between."""
        best = {f"r{rank}": math.inf}
        heap = [(-math.inf, f"r{rank}")]
        while heap:
            width, at = heapq.heappop(heap)
            if -width < best[at] or (at != f"r{rank}" and rank_of(at) is not None):
                continue
            for wire in self._leaving.get(at, ()):
                then = min(-width, wire.bytes_per_s)
                if then > best.get(wire.target, 0.0):
                    best[wire.target] = then
                    heapq.heappush(heap, (-then, wire.target))
        del best[f"r{rank}"]
        named = {rank_of(place): width for place, width in best.items()}
        return {target: width for target, width in named.items() if target is not None}

    def _nearest(self, rank: int, width: float) -> dict[int, tuple[Wire, ...]]:
        """Returns the ways of the least delay over wires that are wide enough."""
        start = f"r{rank}"
        best: dict[str, tuple[float, int]] = {start: (0.0, 0)}
        ways: dict[str, tuple[Wire, ...]] = {start: ()}
        heap = [(best[start], start)]
        while heap:
            cost, at = heapq.heappop(heap)
            if cost > best[at] or (at != start and rank_of(at) is not None):
                continue
            for wire in self._leaving.get(at, ()):
                then = cost[0] + wire.delay_s, cost[1] + 1
                is_nearer = wire.target not in best or then < best[wire.target]
                if wire.bytes_per_s >= width and is_nearer:
                    best[wire.target] = then
                    ways[wire.target] = (*ways[at], wire)
                    heapq.heappush(heap, (then, wire.target))
        del ways[start]
        named = {rank_of(place): way for place, way in ways.items()}
        return {target: way for target, way in named.items() if target is not None}

    def _check_wire(self, wire: Wire) -> None:
        for place in (wire.source, wire.target):
            rank = rank_of(place)
            is_rank = rank is not None and rank < self.num_ranks
            is_name = rank is None and place and place.isprintable()
            if not is_rank and (not is_name or _LIKE_RANK.fullmatch(place)):
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
        LinkGraphError: There is no such wire, the share is negative, or ranks are cut
            off.
    """
    if (source, target) not in {(w.source, w.target) for w in graph.wires}:
        message = f"{graph.name}: there is no wire {source} -> {target}"
        raise LinkGraphError(message)
    if not share >= 0:
        message = f"share must be 0 or more, got {share}"
        raise LinkGraphError(message)
    wires = [
        replace(wire, bytes_per_s=wire.bytes_per_s * share)
        if (wire.source, wire.target) == (source, target)
        else wire
        for wire in graph.wires
    ]
    return LinkGraph(
        name=f"{graph.name}, {source} -> {target} x {share:g}",
        num_ranks=graph.num_ranks,
        wires=tuple(w for w in wires if w.bytes_per_s > 0),
    )


def added(values: Iterable[float]) -> float:
    """Returns a sum, added from the left.

    Python's own rounds otherwise since 3.12, and a schedule would depend on that.
    """
    return functools.reduce(operator.add, values, 0.0)
