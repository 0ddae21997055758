"""Vectors in blocks: each block is some chunks, and has a rank that owns it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from drivetrain_comm.algorithms._steps import Kind, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def split(chunks: Sequence[int], num_blocks: int) -> list[Sequence[int]]:
    """Returns the chunks in as many blocks of neighbours, as equal as they can be.

    Example:
        >>> split(range(5), 2)
        [range(0, 3), range(3, 5)]
    """
    each, rest = divmod(len(chunks), num_blocks)
    starts = [i * each + min(i, rest) for i in range(num_blocks + 1)]
    return [chunks[a:b] for a, b in pairwise(starts)]


def steps(kind: Kind, peer: int, chunks: Iterable[int]) -> list[Step]:
    """Returns the same step for each chunk."""
    return [Step(kind, peer, chunk) for chunk in chunks]


def finish(chunks: Iterable[int]) -> list[Step]:
    """Returns the steps that end the reduction of chunks."""
    return steps(Kind.FINISH, -1, chunks)


def scatter_then_gather(
    ranks: Sequence[int],
    me: int,
    chunks: Sequence[int],
    reduce_scatter: Callable[..., list[Step]],
    all_gather: Callable[..., list[Step]],
) -> list[Step]:
    """Returns an all-reduce: each rank reduces one block, and all get all blocks.

    Args:
        ranks: Those who take part.
        me: One of them.
        chunks: What is reduced.
        reduce_scatter: Given ranks, one of them and the blocks, returns its steps.
        all_gather: Likewise.
    """
    blocks = split(chunks, len(ranks))
    return [
        *reduce_scatter(ranks, me, blocks),
        *finish(blocks[ranks.index(me)]),
        *all_gather(ranks, me, blocks),
    ]
