"""What makes a process group out of a store and a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from datetime import timedelta

    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store


@runtime_checkable
class ProcessGroupFactory(Protocol):
    """Makes the process group of one epoch of membership.

    It is called on every rank of the group, from one thread, and may block until all
    ranks have called it. It leaves the default group of `torch.distributed` alone, so
    that a program may hold several groups, one after the other.
    """

    def __call__(
        self, store: Store, rank: int, world_size: int, timeout: timedelta
    ) -> ProcessGroup:
        """Returns a process group of `world_size` ranks.

        Args:
            store: Where the ranks meet. The caller has given it a prefix that no other
                group uses; nothing in it outlives the group.
            rank: This process's rank, from 0.
            world_size: The number of ranks, at least 1.
            timeout: How long the ranks wait for each other, here and in collectives.

        Raises:
            DistributedError: The arguments make no group, or this machine cannot make
                one; the store has not been touched.
            RuntimeError: Not all ranks came in time.
        """
