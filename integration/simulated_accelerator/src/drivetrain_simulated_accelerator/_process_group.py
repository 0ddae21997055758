"""The collectives' backend `simccl`, which works by Gloo on the device's bytes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, Store

BACKEND = "simccl"
_DEFAULT_TIMEOUT = timedelta(minutes=30)


def make_process_group_backend(
    store: Store, rank: int, world_size: int, timeout: timedelta = _DEFAULT_TIMEOUT
) -> Backend:
    """Returns a backend of collectives for the device, to register on a process group.

    Args:
        store: Where the ranks meet; each group needs a prefix of its own.
        rank: The rank of this process in the group.
        world_size: How many ranks the group has.
        timeout: After how long a collective fails.
    """
    import torch.distributed as dist

    from drivetrain_simulated_accelerator import _native

    gloo = dist.ProcessGroupGloo(store, rank, world_size, timeout)
    return _native.make_simccl(gloo, timeout)


def register() -> None:
    """Makes `init_process_group("cpu:gloo,sim:simccl")` work."""
    import torch.distributed as dist

    if dist.is_available():
        dist.Backend.register_backend(
            BACKEND, make_process_group_backend, devices=["sim"]
        )
