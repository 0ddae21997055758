"""Two levels: within each host first, then between hosts, then within them again.

Each rank of a host answers for a share of the vector and reduces it with those who
answer for the same share on other hosts. A host's link carries 2(H-1)/H of the vector
for H hosts, instead of the ring's 2(W-1)/W, and as many flows as the host has ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_comm.algorithms._blocks import split, steps
from drivetrain_comm.algorithms._steps import Kind, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def num_shares(hosts: Sequence[Sequence[int]]) -> int:
    """Returns into how many shares the vector is cut: the ranks of the largest host."""
    return max(len(ranks) for ranks in hosts)


def all_reduce(
    hosts: Sequence[Sequence[int]],
    me: int,
    chunks: Sequence[int],
    between: Callable[[Sequence[int], int, Sequence[int]], list[Step]],
) -> list[Step]:
    """Returns the steps of one rank.

    Args:
        hosts: The ranks of each host.
        me: One of them.
        chunks: What is reduced.
        between: The steps of an all-reduce between hosts, as `ring.all_reduce` gives
            them.

    Example:
        >>> from drivetrain_comm.algorithms import ring
        >>> found = all_reduce([[0, 1], [2, 3]], 0, range(4), ring.all_reduce)
        >>> sorted({step.peer for step in found if step.peer >= 0})
        [1, 2]
    """
    shares = split(chunks, num_shares(hosts))
    host = next(ranks for ranks in hosts if me in ranks)
    size, at = len(host), host.index(me)

    def shares_of(rank: int) -> list[int]:
        return list(range(host.index(rank), len(shares), size))

    # Each rank begins with another peer, so that all are busy.
    after = [host[(at + offset) % size] for offset in range(1, size)]
    before = after[::-1]
    found: list[Step] = []
    for peer in after:
        for share in shares_of(peer):
            found += steps(Kind.SEND, peer, shares[share])
    for peer in before:
        for share in shares_of(me):
            found += steps(Kind.REDUCE, peer, shares[share])
    for share in shares_of(me):
        column = [ranks[share % len(ranks)] for ranks in hosts]
        found += between(column, me, shares[share])
    for peer in after:
        for share in shares_of(me):
            found += steps(Kind.SEND, peer, shares[share])
    for peer in before:
        for share in shares_of(peer):
            found += steps(Kind.RECEIVE, peer, shares[share])
    return found
