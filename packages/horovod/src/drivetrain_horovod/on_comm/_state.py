"""What stands between `init` and `shutdown`: a process group and this process's place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from drivetrain_comm import (
    BACKEND,
    TunedProcessGroup,
    TunedProcessGroupFactory,
    register,
)
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Launchers' names for local rank, local size, cross rank and cross size.
_NAMES = (
    ("LOCAL_RANK", "HOROVOD_LOCAL_RANK"),
    ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE"),
    ("GROUP_RANK", "HOROVOD_CROSS_RANK"),
    ("GROUP_WORLD_SIZE", "HOROVOD_CROSS_SIZE"),
)


class NotInitializedError(DistributedError, ValueError):
    """A function was called before `init` or after `shutdown`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All processes, and where this one stands.

    Args:
        group: Of all of them.
        place: Local rank, local size, cross rank and cross size.
        is_ours: Whether `init` made torch's default group.
    """

    group: TunedProcessGroup
    place: tuple[int, int, int, int]
    is_ours: bool


_worlds: list[World] = []
_num_made = 0


def world() -> World:
    """Returns what `init` has made.

    Raises:
        NotInitializedError: `init` was not called.
    """
    if not _worlds:
        message = "nothing is initialized here; call init() first"
        raise NotInitializedError(message)
    return _worlds[0]


def init(comm: Sequence[int] | None = None, process_sets: object = None) -> None:
    """Meets the other processes; further calls do nothing.

    Torch's default process group is used if it is a tuned one. If it is another one, a
    tuned one of the same ranks is made beside it. If there is none, one is made from the
    environment of torchrun (RANK, WORLD_SIZE), or from HOROVOD_RANK and HOROVOD_SIZE,
    which need MASTER_ADDR and MASTER_PORT as well; without them this process is alone.

    Args:
        comm: Must be None: there is one world of all ranks.
        process_sets: Must be None.

    Raises:
        DistributedError: Subsets of ranks are asked for, an address is missing, or the
            other ranks do not come.

    Example:
        >>> init()
        >>> rank(), size(), local_rank(), cross_size()
        (0, 1, 0, 1)
        >>> shutdown()
    """
    if comm is not None or process_sets is not None:
        message = (
            "init() makes one world of all ranks: comm and process_sets must be None; "
            "use torch.distributed.new_group for subsets"
        )
        raise DistributedError(message)
    if _worlds:
        return
    is_ours = not dist.is_initialized()
    if is_ours:
        _make_default_group(os.environ)
    group = dist.group.WORLD
    if not isinstance(group, TunedProcessGroup):
        group = _make_group_beside()
    hosts = group.transport.hosts if group.size() > 1 else ((0,),)
    place = place_of(group.rank(), hosts, os.environ)
    _worlds.append(World(group=group, place=place, is_ours=is_ours))


def _make_default_group(environment: Mapping[str, str]) -> None:
    register()
    own_rank = environment.get("RANK", environment.get("HOROVOD_RANK"))
    num_ranks = environment.get("WORLD_SIZE", environment.get("HOROVOD_SIZE"))
    if own_rank is None or num_ranks is None:
        store = HashStore()
        dist.init_process_group(BACKEND, store=store, rank=0, world_size=1)
        return
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in environment:
            message = (
                f"{name} must say where rank 0 of {num_ranks} listens; torchrun sets it"
            )
            raise DistributedError(message)
    dist.init_process_group(BACKEND, rank=int(own_rank), world_size=int(num_ranks))


def _make_group_beside() -> TunedProcessGroup:
    global _num_made
    _num_made += 1
    store = PrefixStore(f"drivetrain_comm_horovod/{_num_made}", _get_default_store())
    timeout = dist.distributed_c10d._get_default_timeout(dist.Backend("gloo"))
    return TunedProcessGroupFactory()(
        store, dist.get_rank(), dist.get_world_size(), timeout
    )


def place_of(
    rank: int, hosts: Sequence[Sequence[int]], environment: Mapping[str, str]
) -> tuple[int, int, int, int]:
    """Returns local rank, local size, cross rank and cross size of a rank.

    Args:
        rank: Of all ranks.
        hosts: The ranks of each host.
        environment: What the launcher says of this rank goes before.

    Example:
        >>> place_of(2, [[0, 1], [2]], {})
        (0, 1, 1, 2)
    """
    at = next(i for i, ranks in enumerate(hosts) if rank in ranks)
    local = list(hosts[at]).index(rank)
    # Hosts with fewer ranks have no peer of the higher local ranks.
    peers = [i for i, ranks in enumerate(hosts) if len(ranks) > local]
    found = (local, len(hosts[at]), peers.index(at), len(peers))
    said = [
        next((environment[name] for name in names if name in environment), None)
        for names in _NAMES
    ]
    local_rank, local_size, cross_rank, cross_size = (
        value if text is None else int(text)
        for value, text in zip(found, said, strict=True)
    )
    return local_rank, local_size, cross_rank, cross_size


def shutdown() -> None:
    """Leaves the group; torch's default group goes if `init` made it."""
    if not _worlds:
        return
    found = _worlds.pop()
    if found.is_ours:
        dist.destroy_process_group()
    elif found.group is not dist.group.WORLD:
        found.group.shutdown()


def is_initialized() -> bool:
    """Returns whether `init` was called, and `shutdown` was not.

    Example:
        >>> is_initialized()
        False
    """
    return bool(_worlds)


def rank() -> int:
    """Returns this process's number among all of them."""
    return world().group.rank()


def size() -> int:
    """Returns the number of processes."""
    return world().group.size()


def local_rank() -> int:
    """Returns this process's number on its host."""
    return world().place[0]


def local_size() -> int:
    """Returns the number of processes on this host."""
    return world().place[1]


def cross_rank() -> int:
    """Returns this host's number among those that have this local rank."""
    return world().place[2]


def cross_size() -> int:
    """Returns the number of hosts that have this local rank."""
    return world().place[3]
