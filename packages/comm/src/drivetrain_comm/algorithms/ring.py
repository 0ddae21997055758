"""The ring: every rank sends to the next one only.

Each rank moves 2(W-1)/W of the vector, the least there can be, in 2(W-1) hops (Patarasuk
and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
The best for long vectors where all links are alike.
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
        ranks: Those who take part, in the order of the ring.
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
    return _around(ranks, me, blocks, Kind.REDUCE, lag=1)


def all_gather(
    ranks: Sequence[int], me: int, blocks: Sequence[Sequence[int]]
) -> list[Step]:
    """Returns the steps that bring each rank's block to all."""
    return _around(ranks, me, blocks, Kind.RECEIVE, lag=0)


def _around(
    ranks: Sequence[int],
    me: int,
    blocks: Sequence[Sequence[int]],
    kind: Kind,
    *,
    lag: int,
) -> list[Step]:
    size, at = len(ranks), ranks.index(me)
    after, before = ranks[(at + 1) % size], ranks[at - 1]
    found: list[Step] = []
    for turn in range(size - 1):
        first = (at - turn - lag) % size
        found += steps(Kind.SEND, after, blocks[first])
        found += steps(kind, before, blocks[first - 1])
    return found
