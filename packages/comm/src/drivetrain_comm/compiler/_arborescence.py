"""The cheapest tree that spans all ranks from a root (Chu and Liu 1965, Edmonds 1967)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def arborescence(cost: Sequence[Sequence[float]], root: int) -> list[int] | None:
    """Returns the parent of each rank in the cheapest tree away from a root.

    Args:
        cost: From the rank of a row to that of a column; infinite where there is no
            way.
        root: Where the tree begins.

    Returns:
        The parents, -1 for the root; None if some rank cannot be reached.

    Example:
        >>> inf = math.inf
        >>> arborescence([[inf, 1, 9], [inf, inf, 2], [inf, 1, inf]], 0)
        [-1, 0, 1]
    """
    size = len(cost)
    edges = [
        (cost[a][b], a, b)
        for a in range(size)
        for b in range(size)
        if a != b and b != root and cost[a][b] < math.inf
    ]
    chosen = _solve(size, root, edges)
    if chosen is None:
        return None
    parents = [-1] * size
    for index in chosen:
        _, a, b = edges[index]
        parents[b] = a
    return parents


def _solve(
    size: int, root: int, edges: Sequence[tuple[float, int, int]]
) -> list[int] | None:
    """Returns the numbers of the edges of the cheapest tree."""
    best: list[int] = [-1] * size
    for i, (cost, _, b) in enumerate(edges):
        if best[b] < 0 or cost < edges[best[b]][0]:
            best[b] = i
    if any(i < 0 for v, i in enumerate(best) if v != root):
        return None
    cycle = _find_cycle(size, root, edges, best)
    if not cycle:
        return [i for v, i in enumerate(best) if v != root]
    # The cycle becomes one place; to enter it gives one of its edges back.
    members = set(cycle)
    place: dict[int, int] = {}
    for v in range(size):
        if v not in members:
            place[v] = len(place)
    hub = len(place)
    inner: list[tuple[float, int, int]] = []
    origin: list[int] = []
    for i, (cost, a, b) in enumerate(edges):
        if a in members and b in members:
            continue
        saved = edges[best[b]][0] if b in members else 0.0
        inner.append((cost - saved, place.get(a, hub), place.get(b, hub)))
        origin.append(i)
    found = _solve(hub + 1, place[root], inner)
    if found is None:
        return None
    chosen = [origin[i] for i in found]
    entered = next(edges[i][2] for i in chosen if edges[i][2] in members)
    return chosen + [best[v] for v in cycle if v != entered]


def _find_cycle(
    size: int, root: int, edges: Sequence[tuple[float, int, int]], best: Sequence[int]
) -> list[int]:
    state = [0] * size
    state[root] = size + 1
    for start in range(size):
        at, mark = start, start + 1
        while not state[at]:
            state[at] = mark
            at = edges[best[at]][1]
        if state[at] == mark and at != root:
            cycle = [at]
            after = edges[best[at]][1]
            while after != at:
                cycle.append(after)
                after = edges[best[after]][1]
            return cycle
    return []
