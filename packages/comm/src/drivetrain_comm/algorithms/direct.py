"""Direct exchange: every rank sends to every other one at once.

Two hops, whatever the number of ranks, and as few bytes as the ring; but W-1 peers send
to one rank at the same time, so that shallow switch buffers overflow. The best for short
vectors on links with a long delay, and within a host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_comm.algorithms._blocks import scatter_then_gather, steps
from drivetrain_comm.algorithms._steps import Kind, Step

if TYPE_CHECKING:
    from collections.abc import Sequence


def num_chunks(num_ranks: int) -> int:
    """Returns how many chunks the algorithm needs at least."""
    return num_ranks


def all_reduce(ranks: Sequence[int], me: int, chunks: Sequence[int]) -> list[Step]:
    """Returns the steps of one rank.

    Args:
        ranks: Those who take part.
        me: One of them.
        chunks: What is reduced.

    Example:
        >>> [(s.kind.name, s.peer, s.chunk) for s in all_reduce([0, 1], 1, [0, 1])]
        ... # doctest: +NORMALIZE_WHITESPACE
        [('SEND', 0, 0), ('REDUCE', 0, 1), ('FINISH', -1, 1), ('SEND', 0, 1),
         ('RECEIVE', 0, 0)]
    """
    return scatter_then_gather(ranks, me, chunks, reduce_scatter, all_gather)


def reduce_scatter(
    ranks: Sequence[int], me: int, blocks: Sequence[Sequence[int]]
) -> list[Step]:
    """Returns the steps after which each rank owns its block, reduced."""
    size, at = len(ranks), ranks.index(me)
    found: list[Step] = []
    for offset in range(1, size):
        to = (at + offset) % size
        found += steps(Kind.SEND, ranks[to], blocks[to])
        found += steps(Kind.REDUCE, ranks[at - offset], blocks[at])
    return found


def all_gather(
    ranks: Sequence[int], me: int, blocks: Sequence[Sequence[int]]
) -> list[Step]:
    """Returns the steps that bring each rank's block to all."""
    size, at = len(ranks), ranks.index(me)
    found: list[Step] = []
    for offset in range(1, size):
        found += steps(Kind.SEND, ranks[(at + offset) % size], blocks[at])
        found += steps(Kind.RECEIVE, ranks[at - offset], blocks[at - offset])
    return found
