"""Recursive halving and doubling: partners at half the distance each time.

As few bytes as the ring in 2 log2(W) hops (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005). Where W is no power
of two, the ranks above one are folded into partners first, which costs the vector twice
more on those. The best between short and long vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_comm.algorithms._blocks import finish, split, steps
from drivetrain_comm.algorithms._steps import Kind, Step

if TYPE_CHECKING:
    from collections.abc import Sequence


def num_chunks(num_ranks: int) -> int:
    """Returns how many chunks the algorithm needs at least."""
    return 1 << (num_ranks.bit_length() - 1)


def all_reduce(ranks: Sequence[int], me: int, chunks: Sequence[int]) -> list[Step]:
    """Returns the steps of one rank.

    Args:
        ranks: Those who take part.
        me: One of them.
        chunks: What is reduced.

    Example:
        >>> [(s.kind.name, s.peer, s.chunk) for s in all_reduce([4, 5, 6], 6, [0, 1])]
        ... # doctest: +NORMALIZE_WHITESPACE
        [('SEND', 4, 0), ('SEND', 4, 1), ('RECEIVE', 4, 0), ('RECEIVE', 4, 1)]
    """
    at, core = ranks.index(me), num_chunks(len(ranks))
    if at >= core:
        partner = ranks[at - core]
        return [
            *steps(Kind.SEND, partner, chunks),
            *steps(Kind.RECEIVE, partner, chunks),
        ]
    extra = [ranks[at + core]] if at + core < len(ranks) else []
    found = [step for peer in extra for step in steps(Kind.REDUCE, peer, chunks)]
    found += _among_core(ranks[:core], at, split(chunks, core))
    return found + [step for peer in extra for step in steps(Kind.SEND, peer, chunks)]


def _among_core(
    ranks: Sequence[int], at: int, blocks: Sequence[Sequence[int]]
) -> list[Step]:
    def at_level(reach: int) -> tuple[int, list[int], list[int]]:
        """Returns the partner, the chunks of this rank's half, and of the other."""
        start = at - at % (2 * reach)
        halves = blocks[start : start + reach], blocks[start + reach :][:reach]
        flat = [[chunk for block in half for chunk in block] for half in halves]
        mine = (at // reach) % 2
        return ranks[at ^ reach], flat[mine], flat[1 - mine]

    found: list[Step] = []
    reaches = [1 << level for level in range(len(ranks).bit_length() - 1)]
    for reach in reversed(reaches):
        peer, mine, other = at_level(reach)
        found += [*steps(Kind.SEND, peer, other), *steps(Kind.REDUCE, peer, mine)]
    found += finish(blocks[at])
    for reach in reaches:
        peer, mine, other = at_level(reach)
        found += [*steps(Kind.SEND, peer, mine), *steps(Kind.RECEIVE, peer, other)]
    return found
