"""Schedules out of trees: each chunk goes its own way, so that all wires end together.

A chunk is gathered from its owner along a tree, or reduced along one into its owner, or
both. Of all ways to choose the trees, the one that loads the busiest wire least is a
packing of arborescences (Edmonds, "Edge-disjoint branchings", 1973). It is approached as
in Garg and Koenemann, "Faster and simpler algorithms for multicommodity flow and other
fractional packing problems", 2007: chunk by chunk takes the cheapest tree, where a wire
costs exponentially more the busier it is, and is taken out and laid anew some times.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drivetrain_comm.compiler._arborescence import arborescence
from drivetrain_comm.compiler._graph import added
from drivetrain_comm.compiler._schedule import Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_comm.compiler._graph import LinkGraph

_STEEPNESS = (4.0, 8.0, 16.0, 32.0, 64.0)
_ROUNDS_EACH = 2
_DELAY_WEIGHT = 1e-3
_FLATTER = 1.3


def packed_trees(
    graph: LinkGraph, collective: str, num_chunks: int, root: int = 0
) -> tuple[list[int], list[Transfer]]:
    """Returns the owners of chunks, and their transfers.

    Args:
        graph: The links.
        collective: Which one. In an all-reduce any rank may own a chunk, in all_gather
            and reduce_scatter all own as many.
        num_chunks: How many; for all_gather and reduce_scatter a multiple of the ranks.
        root: Of a broadcast.
    """
    packing = _Packing(graph)
    owners = _owners(graph, collective, num_chunks, root)
    trees: list[_Trees | None] = [None] * num_chunks
    best, best_load = list(trees), math.inf
    for steepness in _STEEPNESS:
        for _ in range(_ROUNDS_EACH):
            for chunk in _interleaved(num_chunks, graph.num_ranks):
                old = trees[chunk]
                if old is not None:
                    packing.load(old, -1)
                roots = graph.ranks if owners[chunk] is None else [owners[chunk]]
                trees[chunk] = packing.cheapest(collective, roots, steepness)
                packing.load(trees[chunk], 1)
            load = packing.busiest_s()
            if load < best_load * (1 - 1e-9):
                best, best_load = list(trees), load
    laid = [one for one in best if one is not None]
    return [one.owner for one in laid], [
        transfer for chunk, one in enumerate(laid) for transfer in one.transfers(chunk)
    ]


def _owners(
    graph: LinkGraph, collective: str, num_chunks: int, root: int
) -> list[int | None]:
    if collective == "all_reduce":
        return [None] * num_chunks
    if collective == "broadcast":
        return [root] * num_chunks
    each = num_chunks // graph.num_ranks
    return [chunk // each for chunk in range(num_chunks)]


def _interleaved(num_chunks: int, num_ranks: int) -> list[int]:
    """Returns chunks so that neighbours have different owners."""
    each = max(1, num_chunks // num_ranks)
    return sorted(range(num_chunks), key=lambda chunk: (chunk % each, chunk))


class _Trees:
    """The trees of one chunk: the parents towards the owner, and away from it."""

    def __init__(
        self, owner: int, inward: Sequence[int] | None, outward: Sequence[int] | None
    ) -> None:
        self.owner = owner
        self._inward = inward
        self._outward = outward

    def pairs(self) -> list[tuple[int, int]]:
        """Returns who sends to whom."""
        found = [(v, p) for v, p in enumerate(self._inward or ()) if p >= 0]
        return found + [(p, v) for v, p in enumerate(self._outward or ()) if p >= 0]

    def transfers(self, chunk: int) -> list[Transfer]:
        """Returns the transfers, the leaves' first on the way in, and last out."""
        found = []
        if self._inward is not None:
            order = _by_depth(self._inward)
            found += [
                Transfer(v, self._inward[v], chunk, reduces=True)
                for v in reversed(order)
                if v != self.owner
            ]
        if self._outward is not None:
            order = _by_depth(self._outward)
            found += [
                Transfer(self._outward[v], v, chunk) for v in order if v != self.owner
            ]
        return found


def _by_depth(parents: Sequence[int]) -> list[int]:
    depth: dict[int, int] = {}
    for start in range(len(parents)):
        way = []
        at = start
        while at >= 0 and at not in depth:
            way.append(at)
            at = parents[at]
        so_far = depth[at] if at >= 0 else -1
        for offset, v in enumerate(reversed(way), start=1):
            depth[v] = so_far + offset
    return sorted(depth, key=lambda v: (depth[v], v))


def _flattened(parents: list[int] | None, cost: Sequence[Sequence[float]]) -> list[int]:
    """Returns a tree with ranks nearer to the root where that costs little more."""
    assert parents is not None
    order = _by_depth(parents)
    depth = {order[0]: 0}
    # Nearer ranks are settled first, so that none becomes a child of its own child.
    for v in order[1:]:
        most = cost[parents[v]][v] * _FLATTER
        near = [p for p in depth if cost[p][v] <= most]
        parents[v] = min(near, key=lambda p: (depth[p], cost[p][v]))
        depth[v] = depth[parents[v]] + 1
    return parents


class _Packing:
    """What each wire carries so far."""

    def __init__(self, graph: LinkGraph) -> None:
        numbers = {id(wire): i for i, wire in enumerate(graph.wires)}
        self._size = graph.num_ranks
        self._ways = {
            pair: [numbers[id(wire)] for wire in graph.route(*pair)]
            for pair in graph.pairs
        }
        fastest = max(wire.bytes_per_s for wire in graph.wires)
        # In seconds of the fastest wire for a chunk.
        self._unit_s = [fastest / wire.bytes_per_s for wire in graph.wires]
        self._busy_s = [0.0] * len(graph.wires)

    def busiest_s(self) -> float:
        return max(self._busy_s)

    def load(self, trees: _Trees | None, times: int) -> None:
        for pair in trees.pairs() if trees else ():
            for wire in self._ways[pair]:
                self._busy_s[wire] += times * self._unit_s[wire]

    def cheapest(
        self, collective: str, roots: Sequence[int | None], steepness: float
    ) -> _Trees:
        """Returns the trees that cost least, of all roots."""
        cost = self._costs(steepness)
        back = [list(column) for column in zip(*cost, strict=True)]
        best: _Trees | None = None
        least = math.inf
        for root in roots:
            assert root is not None
            inward = outward = None
            price = 0.0
            if collective in ("all_reduce", "reduce_scatter"):
                inward = _flattened(arborescence(back, root), back)
                price += added(cost[v][p] for v, p in enumerate(inward) if p >= 0)
            if collective != "reduce_scatter":
                outward = _flattened(arborescence(cost, root), cost)
                price += added(cost[p][v] for v, p in enumerate(outward) if p >= 0)
            if price < least:
                best, least = _Trees(root, inward, outward), price
        assert best is not None
        return best

    def _costs(self, steepness: float) -> list[list[float]]:
        most = max(max(self._busy_s), *self._unit_s)
        price = [
            unit * math.exp(steepness * (busy + unit) / most)
            for unit, busy in zip(self._unit_s, self._busy_s, strict=True)
        ]
        # Hops cost too, a little: of two trees that load alike, the shorter waits less.
        least = _DELAY_WEIGHT * min(price)
        cost = [[math.inf] * self._size for _ in range(self._size)]
        for (a, b), way in self._ways.items():
            cost[a][b] = least + added(price[wire] for wire in way)
        return cost
