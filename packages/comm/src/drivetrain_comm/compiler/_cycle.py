"""In which order a ring goes around: so that its narrowest way is as wide as can be."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_comm.compiler._graph import LinkGraph

_MOST_FOR_ALL = 8  # ranks, of which all orders are tried
_MOST_STEPS = 50_000


def widest_cycle(graph: LinkGraph) -> list[int]:
    """Returns all ranks, beginning with 0, so that each has a wide way to the next.

    All orders are tried up to 8 ranks, and of those that are as wide the one with the
    fewest wires is taken. Beyond, cycles are searched for, of the widest ways first.
    Where none is found, the order is that of the ranks.

    Example:
        >>> from drivetrain_comm.compiler import torus
        >>> order = widest_cycle(torus(3, 3, 1e9))
        >>> ways = set(torus(3, 3, 1e9).pairs)
        >>> all(pair in ways for pair in zip(order, order[1:] + order[:1]))
        True
    """
    width = {
        pair: min(wire.bytes_per_s for wire in graph.route(*pair))
        for pair in graph.pairs
    }
    num_wires = {pair: len(graph.route(*pair)) for pair in graph.pairs}

    def worth(order: Sequence[int]) -> tuple[float, int]:
        pairs = [*pairwise(order), (order[-1], order[0])]
        narrowest = min(width.get(pair, 0.0) for pair in pairs)
        return narrowest, -sum(num_wires.get(pair, graph.num_ranks) for pair in pairs)

    if graph.num_ranks <= _MOST_FOR_ALL:
        rest = permutations(range(1, graph.num_ranks))
        return max(([0, *one] for one in rest), key=worth)
    for least in sorted(set(width.values()), reverse=True):
        wide = {pair for pair, w in width.items() if w >= least}
        order = _cycle(graph.num_ranks, wide, num_wires)
        if order is not None:
            return order
    return list(graph.ranks)


def _cycle(
    num_ranks: int, ways: set[tuple[int, int]], num_wires: dict[tuple[int, int], int]
) -> list[int] | None:
    """Returns a cycle over all ranks, found by going on where the fewest ways are left.

    That rule is Warnsdorff's; a search that takes too long is given up.
    """
    after: dict[int, list[int]] = {rank: [] for rank in range(num_ranks)}
    for a, b in ways:
        after[a].append(b)
    order, seen = [0], {0}
    steps = 0

    def choices() -> list[int]:
        at = order[-1]
        left = [b for b in after[at] if b not in seen]
        left.sort(
            key=lambda b: (
                num_wires[at, b],
                sum(c not in seen for c in after[b]),
                (b - at) % num_ranks,
            )
        )
        return left[::-1]

    stack = [choices()]
    while stack and steps < _MOST_STEPS:
        steps += 1
        if len(order) == num_ranks and (order[-1], 0) in ways:
            return order
        if stack[-1]:
            order.append(stack[-1].pop())
            seen.add(order[-1])
            stack.append(choices())
        else:
            stack.pop()
            seen.discard(order.pop())
    return None
