"""In which order ranks should stand in a ring, so that no slow link is crossed in vain."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._cluster import check_hosts, find_hosts
from drivetrain_fabric.topology._errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_fabric.topology._matrix import LinkMatrix

_MOST_FOR_ALL = 8
_Costs = list[list[float]]


def ring_order(
    matrix: LinkMatrix,
    *,
    hosts: Iterable[Sequence[int]] | None = None,
    size_bytes: int = 1 << 20,
) -> tuple[int, ...]:
    """Returns the ranks in the order of the ring that is fastest.

    Of the rings in which the ranks of each host stand together it is the one whose
    slowest crossing is fastest; of those, the one whose crossings take the least
    together. Up to 8 ranks all are tried; above that one is improved until turning no
    part of it around helps, which is not always the best one. The same numbers always
    give the same order.

    Args:
        matrix: What was measured.
        hosts: The ranks of each host; by default what `find_hosts` finds.
        size_bytes: How long the messages around the ring are.

    Returns:
        The ranks, beginning with the host of the lowest one.

    Raises:
        TopologyError: `hosts` or `size_bytes` do not fit.

    Example:
        >>> from drivetrain_fabric.topology import LinkMatrix
        >>> slow = [{0, 1}, {2, 3}]
        >>> links = LinkMatrix(
        ...     delay_s=tuple(tuple(1e-3 * (a != b) for b in range(4))
        ...                   for a in range(4)),
        ...     bytes_per_s=tuple(
        ...         tuple((1e8 if {a, b} in slow else 1e9) * (a != b) for b in range(4))
        ...         for a in range(4)))
        >>> ring_order(links, hosts=[[0], [1], [2], [3]])
        (0, 2, 1, 3)
    """
    if size_bytes < 0:
        message = f"size_bytes must be 0 or more, got {size_bytes}"
        raise TopologyError(message)
    rows = check_hosts(find_hosts(matrix) if hosts is None else hosts, matrix)
    rows = sorted(sorted(host) for host in rows)
    costs = _costs(matrix, size_bytes)
    if len(matrix) <= _MOST_FOR_ALL:
        best = min(_all_rings(rows), key=lambda ring: _cost(ring, costs))
    else:
        best = _improve(_greedy(rows, costs), rows, costs)
    return tuple(matrix.ranks[row] for row in _from_first(best, rows[0]))


def ring_cost(
    matrix: LinkMatrix, order: Sequence[int], *, size_bytes: int = 1 << 20
) -> tuple[float, float]:
    """Returns the seconds of the slowest crossing of a ring, and of all together.

    Each crossing counts in its slower direction.

    Args:
        matrix: What was measured.
        order: The ranks in the order of the ring.
        size_bytes: How long the messages are.

    Raises:
        TopologyError: The order lacks a rank, or has one that was not measured.
    """
    (ring,) = check_hosts([order], matrix)
    return _cost(ring, _costs(matrix, size_bytes))


def _costs(matrix: LinkMatrix, size_bytes: int) -> _Costs:
    costs = [[0.0] * len(matrix) for _ in range(len(matrix))]
    for a, b in matrix.pairs():
        both = matrix.seconds(a, b, size_bytes), matrix.seconds(b, a, size_bytes)
        costs[a][b] = max(both)
    return costs


def _cost(ring: Sequence[int], costs: _Costs) -> tuple[float, float]:
    edges = [costs[ring[i - 1]][ring[i]] for i in range(len(ring))]
    # The exact sum does not depend on where the ring begins.
    return max(edges), math.fsum(edges)


def _all_rings(hosts: list[list[int]]) -> Iterable[list[int]]:
    """Returns each ring; the first host is always first, since a ring has no start."""
    first, *rest = hosts
    if not rest:
        first, rest = first[:1], [[row] for row in first[1:]]
    for order in itertools.permutations(rest):
        inner = (itertools.permutations(host) for host in (first, *order))
        for parts in itertools.product(*inner):
            yield list(itertools.chain.from_iterable(parts))


def _greedy(hosts: list[list[int]], costs: _Costs) -> list[int]:
    """Returns a ring that always goes to the nearest rank, its own host's first."""
    ring = [hosts[0][0]]
    host_of = {row: i for i, host in enumerate(hosts) for row in host}
    left = set(host_of) - set(ring)
    while left:
        here = host_of[ring[-1]]
        near = [row for row in left if host_of[row] == here] or left
        ring.append(min(near, key=lambda row: (costs[ring[-1]][row], row)))
        left.discard(ring[-1])
    return ring


def _improve(ring: list[int], hosts: list[list[int]], costs: _Costs) -> list[int]:
    """Returns a ring that turning any part around does not make better (2-opt)."""
    host_of = {row: i for i, host in enumerate(hosts) for row in host}
    size = len(ring)
    slowest, total = _cost(ring, costs)
    is_better = True
    while is_better:
        is_better = False
        for i, j in itertools.combinations(range(size), 2):
            if (i == 0 and j == size - 1) or not _keeps_hosts(ring, i, j, host_of):
                continue
            before, after = ring[i - 1], ring[(j + 1) % size]
            old = costs[before][ring[i]], costs[ring[j]][after]
            new = costs[before][ring[j]], costs[ring[i]][after]
            # Most turns are ruled out by the two links that they change.
            if max(new) > slowest or (sum(new) >= sum(old) and max(old) < slowest):
                continue
            turned = [*ring[:i], *reversed(ring[i : j + 1]), *ring[j + 1 :]]
            cost = _cost(turned, costs)
            if cost < (slowest, total):
                ring, (slowest, total), is_better = turned, cost, True
    return ring


def _keeps_hosts(ring: list[int], i: int, j: int, host_of: dict[int, int]) -> bool:
    """Returns whether hosts stand together after ring[i..j] was turned around."""
    hosts = [host_of[ring[k % len(ring)]] for k in (i - 1, i, j, j + 1)]
    is_inside = hosts[1] == hosts[2] and _is_one_host(ring, i, j, host_of)
    return is_inside or (hosts[0] != hosts[1] and hosts[2] != hosts[3])


def _is_one_host(ring: list[int], i: int, j: int, host_of: dict[int, int]) -> bool:
    return all(host_of[row] == host_of[ring[i]] for row in ring[i : j + 1])


def _from_first(ring: list[int], first: list[int]) -> list[int]:
    """Returns the ring from its first host on, in the direction that counts up."""
    if len(first) == len(ring):
        starts = [ring.index(min(ring))]
    else:
        size = len(ring)
        starts = [
            i for i in range(size) if ring[i] in first and ring[i - 1] not in first
        ]
    forth = ring[starts[0] :] + ring[: starts[0]]
    if len(first) == len(ring):
        back = [forth[0], *reversed(forth[1:])]
    else:
        turned = forth[::-1]
        at = len(ring) - len(first)
        back = turned[at:] + turned[:at]
    return min(forth, back)
