"""Which rows each rank owns, and in which chunks they travel."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from drivetrain_parallel.overlap._errors import OverlapError

# A chunk should take far longer on its way than the call that starts it (about 0.1 ms),
# and there should be enough of them that the first and the last matter little.
_CHUNK_BYTES = 512 << 10
_MOST_CHUNKS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows of a whole tensor, one block a rank, each block in chunks.

    Args:
        counts: How many rows each rank owns.
        num_chunks: How many chunks a block has, fewer where it has fewer rows.

    Raises:
        OverlapError: A count is negative, or there is no chunk.

    Example:
        >>> rows = Rows(counts=(3, 2), num_chunks=2)
        >>> rows.chunks(0), rows.block(1)
        ([slice(0, 1, None), slice(1, 3, None)], slice(3, 5, None))
    """

    counts: tuple[int, ...]
    num_chunks: int

    def __post_init__(self) -> None:
        """Checks the counts."""
        if any(count < 0 for count in self.counts):
            message = f"a rank has 0 rows or more, got {self.counts}"
            raise OverlapError(message)
        if self.num_chunks < 1:
            message = f"num_chunks must be at least 1, got {self.num_chunks}"
            raise OverlapError(message)

    @property
    def total(self) -> int:
        """The number of rows of the whole."""
        return sum(self.counts)

    def block(self, rank: int) -> slice:
        """Returns where the rows of a rank lie in the whole."""
        ends = [0, *accumulate(self.counts)]
        return slice(ends[rank], ends[rank + 1])

    def chunks(self, rank: int) -> list[slice]:
        """Returns where the chunks of a rank lie in the whole; none is empty."""
        start, count = self.block(rank).start, self.counts[rank]
        parts = min(self.num_chunks, count)
        cuts = [start + count * part // parts for part in range(parts)]
        return [slice(*pair) for pair in pairwise([*cuts, start + count])]


def default_num_chunks(block_bytes: int) -> int:
    """Returns in how many chunks a block goes: 512 KiB each, but 8 at most.

    Args:
        block_bytes: The size of the largest block.

    Example:
        >>> [default_num_chunks(size) for size in (0, 1 << 20, 1 << 30)]
        [1, 2, 8]
    """
    return max(1, min(_MOST_CHUNKS, block_bytes // _CHUNK_BYTES))


def chunked_rows(total: int, num_ranks: int) -> tuple[int, ...]:
    """Returns the rows of each rank as `torch.chunk` and a sharded DTensor have them.

    Example:
        >>> chunked_rows(5, 4)
        (2, 2, 1, 0)
    """
    most = -(-total // num_ranks)
    return tuple(min(most, max(0, total - most * rank)) for rank in range(num_ranks))
