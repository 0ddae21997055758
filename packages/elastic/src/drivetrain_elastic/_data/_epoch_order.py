"""Order of the samples of an epoch, and which of them each rank reads; pure functions.

N samples, W ranks, and a position P: how many samples of the epoch all ranks together
have consumed. What was consumed is always a prefix of the order, so that one number says
what is left, whatever the number of ranks was and will be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def epoch_order(num_samples: int, *, epoch: int, seed: int, shuffle: bool) -> Tensor:
    """Returns the indices of all samples in the order of an epoch, int64.

    It is the order of `torch.utils.data.DistributedSampler`: the permutation that a
    generator gives which is seeded with `seed + epoch`.

    Args:
        num_samples: How many samples there are.
        epoch: Which pass over them.
        seed: Of the permutations.
        shuffle: Whether there is one.

    Example:
        >>> epoch_order(4, epoch=0, seed=0, shuffle=False).tolist()
        [0, 1, 2, 3]
    """
    if not shuffle:
        return torch.arange(num_samples)
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(num_samples, generator=generator)


def part_of_rank(
    order: Tensor, position: int, *, world_size: int, rank: int, tail: str
) -> Tensor:
    """Returns what one rank reads after a position: every W-th sample.

    Args:
        order: Of the epoch, as `epoch_order` returns it.
        position: P.
        world_size: W.
        rank: From 0.
        tail: What becomes of the last samples, fewer than W: `pad` reads some of those
            that are left twice, so that all ranks read equally many; `drop` leaves them
            out; `uneven` gives them to the first ranks.

    Example:
        >>> order = torch.arange(10)
        >>> [part_of_rank(order, 3, world_size=3, rank=r, tail="uneven").tolist()
        ...     for r in range(3)]
        [[3, 6, 9], [4, 7], [5, 8]]
        >>> [part_of_rank(order, 3, world_size=3, rank=r, tail="pad").tolist()
        ...     for r in range(3)]
        [[3, 6, 9], [4, 7, 3], [5, 8, 4]]
    """
    left = order[position:]
    extra = len(left) % world_size
    if extra and tail == "drop":
        left = left[: len(left) - extra]
    elif extra and tail == "pad":
        num_missing = world_size - extra
        num_times = -(-num_missing // len(left))
        left = torch.cat([left, left.repeat(num_times)[:num_missing]])
    return left[rank::world_size]


def part_of_block(start: int, size: int, *, world_size: int, rank: int) -> range:
    """Returns the positions of a global batch that one rank reads: consecutive ones.

    They are those of `drivetrain_core.services.BatchPlan`; of a batch with fewer samples
    than ranks, the last ranks read none.

    Args:
        start: The position of the first sample of the batch.
        size: How many samples it has.
        world_size: The number of ranks.
        rank: From 0.

    Example:
        >>> [list(part_of_block(100, 5, world_size=3, rank=r)) for r in range(3)]
        [[100, 101], [102, 103], [104]]
        >>> [len(part_of_block(0, 1, world_size=2, rank=r)) for r in range(2)]
        [1, 0]
    """
    each, more = divmod(size, world_size)
    first = start + rank * each + min(rank, more)
    return range(first, first + each + (rank < more))
