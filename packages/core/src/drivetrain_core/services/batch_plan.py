"""How a global batch is split among ranks and micro-batches: the one place for it.

Used by `train_step`, by elastic training and by samplers, so that all agree on who
reads which rows and how much each micro-batch counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap


@dataclass(frozen=True, kw_only=True, slots=True)
class RankBatch:
    """One rank's part of a global batch: consecutive rows, in micro-batches.

    Args:
        sizes: The number of rows in each micro-batch, in order.
        weights: What each micro-batch's mean loss is multiplied by before `backward`.
        start: The place of the first row in the global batch.

    Example:
        >>> part = BatchPlan(world_size=2, global_batch=10, num_micro_batches=2)
        >>> part.for_rank(1)
        RankBatch(sizes=(3, 2), weights=(0.6, 0.4), start=5)
        >>> part.for_rank(1).slices
        (slice(5, 8, None), slice(8, 10, None))
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    start: int

    @property
    def size(self) -> int:
        """Returns the number of rows of this rank."""
        return sum(self.sizes)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Returns where each micro-batch lies in the global batch."""
        ends = accumulate(self.sizes, initial=self.start)
        return tuple(starmap(slice, pairwise(ends)))


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """The exact split of a global batch, for any number of ranks.

    Each rank has the same number of micro-batches, none is empty, and their sizes
    differ by one row at most. With `weight = size * world_size / global_batch`, the sum
    over a rank of `weight * mean loss`, averaged over ranks as DDP and FSDP average
    gradients, is the mean loss over the global batch, however uneven the parts are.

    Args:
        world_size: The number of data-parallel ranks.
        global_batch: The number of rows that one optimizer step consumes.
        num_micro_batches: The number of forward and backward passes on each rank.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: An argument is below one, or the batch has too few rows.

    Example:
        >>> plan = BatchPlan(world_size=3, global_batch=8)
        >>> [plan.for_rank(rank).sizes for rank in range(3)]
        [(3,), (3,), (2,)]
        >>> losses = [1.0, 2.0, 5.0]  # the mean loss of each rank's rows
        >>> parts = [plan.for_rank(rank).weights[0] for rank in range(3)]
        >>> sum(w * loss for w, loss in zip(parts, losses)) / 3  # (3*1 + 3*2 + 2*5) / 8
        2.375
    """

    world_size: int
    global_batch: int
    num_micro_batches: int = 1

    def __post_init__(self) -> None:
        """Checks that every micro-batch gets a row."""
        for name in ("world_size", "global_batch", "num_micro_batches"):
            value = getattr(self, name)
            if type(value) is not int:
                message = f"{name} must be an integer, got {value!r}"
                raise TypeError(message)
            if value < 1:
                message = f"{name} must be at least 1, got {value}"
                raise ValueError(message)
        needed = self.world_size * self.num_micro_batches
        if self.global_batch < needed:
            message = (
                f"a global batch of {self.global_batch} rows cannot fill "
                f"{self.num_micro_batches} micro-batches on each of {self.world_size} "
                f"ranks; {self._fix(needed)}"
            )
            raise ValueError(message)

    def for_rank(self, rank: int) -> RankBatch:
        """Returns the part of one rank.

        Args:
            rank: The data-parallel rank, from 0.

        Raises:
            TypeError: The rank is not an integer.
            ValueError: There is no such rank.
        """
        if type(rank) is not int:
            message = f"rank must be an integer, got {rank!r}"
            raise TypeError(message)
        if not 0 <= rank < self.world_size:
            message = (
                f"rank must be from 0 to {self.world_size - 1} for a world of "
                f"{self.world_size}, got {rank}"
            )
            raise ValueError(message)
        rows, more_rows = divmod(self.global_batch, self.world_size)
        own = rows + (rank < more_rows)
        size, larger = divmod(own, self.num_micro_batches)
        sizes = tuple(size + (i < larger) for i in range(self.num_micro_batches))
        return RankBatch(
            sizes=sizes,
            weights=tuple(s * self.world_size / self.global_batch for s in sizes),
            start=rank * rows + min(rank, more_rows),
        )

    def _fix(self, needed: int) -> str:
        most = self.global_batch // self.world_size
        if most == 0:
            return f"use a global batch of at least {needed}, or fewer ranks"
        return (
            f"use at most {most} micro-batches, or a global batch of at least {needed}"
        )
