"""The contract of a factory of process groups."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from drivetrain_core import DistributedError, destroy_process_group, init_process_group
from drivetrain_core.services.process_group import ProcessGroupFactory
from drivetrain_testing._clauses import must_raise, require
from drivetrain_testing._processes import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.distributed_c10d import Store

_TIMEOUT = timedelta(seconds=30)


def check_process_group_factory(
    factory: Callable[[], ProcessGroupFactory],
    *,
    world_sizes: Sequence[int] = (1, 2),
    timeout_s: float = 90.0,
) -> None:
    """Checks that a factory makes process groups that work, one after the other.

    Each world runs in fresh processes on the CPU.

    Args:
        factory: Makes the factory, in each process. It crosses to them by pickle.
        world_sizes: The numbers of ranks to try.
        timeout_s: How long each world may take, in seconds.

    Raises:
        AssertionError: A clause of the contract is broken.
    """
    for world_size in world_sizes:
        run_ranks(
            _check_rank, world_size, factory, process_group=False, timeout_s=timeout_s
        )


def _check_rank(factory: Callable[[], ProcessGroupFactory]) -> None:
    make = factory()
    require(isinstance(make, ProcessGroupFactory), "a factory can be called")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    for epoch in range(3):
        prefix = _prefixed(f"epoch-{epoch}/", store)
        group = make(prefix, rank, world_size, _TIMEOUT)
        _check_group(group, rank, world_size)
        require(
            not dist.is_initialized(), "a factory leaves the default group as it is"
        )
        del group
    for bad_rank, bad_size in ((world_size, world_size), (-1, 1), (0, 0)):
        with must_raise(
            DistributedError, f"rank {bad_rank} of a world of {bad_size} is refused"
        ):
            make(_prefixed("bad/", store), bad_rank, bad_size, _TIMEOUT)
    if rank == 0:
        with must_raise(RuntimeError, "a rank that never comes ends in an error"):
            lonely = _prefixed("lonely/", store)
            alone = make(lonely, 0, world_size + 1, timedelta(seconds=1))
            alone.barrier().wait()
    _check_default_group(make, world_size)


def _check_group(group: dist.ProcessGroup, rank: int, world_size: int) -> None:
    require(
        isinstance(group, dist.ProcessGroup),
        "a factory returns a ProcessGroup of torch",
    )
    require(
        (group.rank(), group.size()) == (rank, world_size),
        "the group has the rank and the world size that were asked for",
    )
    total = world_size * (world_size + 1) / 2
    tensor = torch.full((3,), float(rank + 1))
    group.allreduce([tensor]).wait()
    require(tensor.tolist() == [total] * 3, "allreduce adds the tensors of all ranks")
    last = world_size - 1
    options = dist.BroadcastOptions()
    options.rootRank = last
    tensor = torch.full((2,), float(rank))
    group.broadcast([tensor], options).wait()
    require(tensor.tolist() == [last] * 2, "broadcast sends the root's tensor to all")
    gathered = [[torch.empty(1) for _ in range(world_size)]]
    group.allgather(gathered, [torch.tensor([float(rank)])]).wait()
    require(
        [t.item() for t in gathered[0]] == list(range(world_size)),
        "allgather gives every rank all tensors, by rank",
    )
    group.barrier().wait()


def _check_default_group(make: ProcessGroupFactory, world_size: int) -> None:
    init_process_group(make, timeout=_TIMEOUT)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    require(
        tensor.tolist() == [world_size] * 2,
        "the group works as the default group of torch.distributed",
    )
    destroy_process_group()
    require(not dist.is_initialized(), "the default group can be destroyed")


def _prefixed(prefix: str, store: Store) -> Store:
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
