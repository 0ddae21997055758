"""Makes all the process groups of a rank at once, with nobody waiting for the world."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import distributed_c10d

from drivetrain_comm.groups._plan import plan_groups
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import timedelta

_LAZY = "TORCH_GLOO_LAZY_INIT"

_lock = threading.Lock()
_num_calls: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = (
    weakref.WeakKeyDictionary()
)


@contextlib.contextmanager
def lazy_gloo() -> Iterator[None]:
    """Has Gloo groups that are made within connect to a peer when they first need it.

    Otherwise each rank connects to all others at once: for a world of 2048, two million
    connections. Around `init_process_group` it must be entered on all ranks, or on none.
    A value of TORCH_GLOO_LAZY_INIT that the user has set stays.

    It changes the environment for as long as it lasts, which all threads see.

    Example:
        >>> with lazy_gloo():
        ...     dist.init_process_group(
        ...         "gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> dist.destroy_process_group()
    """
    # What torch reads; it passes no options on to Gloo from its public functions.
    with _lock:
        given = os.environ.get(_LAZY)
        os.environ.setdefault(_LAZY, "1")
        try:
            yield
        finally:
            if given is None:
                os.environ.pop(_LAZY, None)


def create_groups(
    dims: Mapping[str, int],
    *,
    together: Sequence[Sequence[str]] = (),
    backend: str | None = None,
    timeout: timedelta | None = None,
) -> dict[str, dist.ProcessGroup]:
    """Makes the groups of a mesh that this rank is in, and no others.

    All ranks call it, with the same arguments, while no other thread makes groups. It
    takes one operation of the store a group and rank, and one a rank to see that all
    ranks ask for the same; ranks do not wait for each other. What torch connects later,
    it connects when a group is first used.

    Args:
        dims: Each dimension's name and size, from the outermost to the innermost; see
            `plan_groups`.
        together: Further groups over several dimensions.
        backend: Of the groups; by default that of the world.
        timeout: Of the groups' collectives; by default torch's.

    Returns:
        This rank's group for each name.

    Raises:
        DistributedError: No process group stands, the sizes do not multiply to the
            world size, or another rank has asked for something else.

    Example:
        >>> with lazy_gloo():
        ...     dist.init_process_group(
        ...         "gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> sorted(create_groups({"data": 1, "tensor": 1}))
        ['data', 'tensor']
        >>> dist.destroy_process_group()
    """
    world = dist.group.WORLD if dist.is_initialized() else None
    if world is None:
        message = "create_groups needs a world: call init_process_group first"
        raise DistributedError(message)
    plan = plan_groups(world.size(), dims, together=together)
    _compare(world, f"{plan} {backend}")
    found: dict[str, dist.ProcessGroup] = {}
    with lazy_gloo():
        for group in plan.groups_of(world.rank()):
            # torch names such a group by its ranks and by how many groups this rank has
            # made: the same on all its ranks, since all make as many of each name.
            made = dist.new_group(
                list(group.ranks),
                timeout=timeout,
                backend=backend,
                use_local_synchronization=True,
                group_desc=f"{group.name}/{group.index}",
            )
            assert isinstance(made, dist.ProcessGroup)
            found[group.name] = made
    return found


def _compare(world: dist.ProcessGroup, asked: str) -> None:
    """Raises if the first rank that came here in this turn has asked for other groups."""
    turn = _num_calls.get(world, 0)
    _num_calls[world] = turn + 1
    store = distributed_c10d._get_default_store()
    try:
        first = store.compare_set(f"drivetrain_groups/{turn}", "", asked).decode()
    except NotImplementedError:
        # Such a store compares nothing; groups that differ then run into the timeout.
        return
    if first != asked:
        message = (
            f"rank {world.rank()} asks for the groups {asked}, another rank for {first} "
            "(world size, dimensions, names, backend): all ranks must ask for the same"
        )
        raise DistributedError(message)
