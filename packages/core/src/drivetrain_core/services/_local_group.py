"""Process groups that only their own ranks make, whatever other ranks make meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from collections.abc import Sequence

_made: tuple[Any, Counter[tuple[int, ...]]] = (None, Counter())


def new_local_group(ranks: Sequence[int], **options: Any) -> dist.ProcessGroup:
    """Returns a new group of some ranks; only these call this, and all of them.

    torch names such a group by how many a rank has made, of which its ranks need not have
    made the same number; and from 2.15 on it counts in the names of all groups that come
    later, on its own ranks alone. Ranks then wait for good. Here it is named by its ranks
    and by how many groups of them there were, which they agree on.

    Args:
        ranks: Their numbers in the default group.
        **options: What `torch.distributed.new_group` takes besides.

    Example:
        >>> from drivetrain_core import destroy_process_group, init_process_group
        >>> _ = init_process_group()
        >>> new_local_group([0]).size()
        1
        >>> destroy_process_group()
    """
    global _made
    if _made[0] is not dist.group.WORLD:
        _made = (dist.group.WORLD, Counter())
    _made[1][tuple(ranks)] += 1
    name = f"local {tuple(ranks)} {_made[1][tuple(ranks)]}"
    world, named = distributed_c10d._world, distributed_c10d._hash_ranks_to_str
    count = world.group_count
    distributed_c10d._hash_ranks_to_str = lambda ranks: name  # noqa: ARG005
    try:
        made: dist.ProcessGroup = dist.new_group(
            ranks, use_local_synchronization=True, **options
        )
        return made
    finally:
        distributed_c10d._hash_ranks_to_str = named
        world.group_count = count
