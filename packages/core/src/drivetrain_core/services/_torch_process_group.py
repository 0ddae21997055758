"""The process groups of torch: the fallback factory, and the default group.

This is the only place that calls `torch.distributed.init_process_group`. A program
calls `init_process_group` here once at its start; `accelerate` uses the group that
stands and never makes one.
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from drivetrain_core._errors import DistributedError
from drivetrain_core.services._gloo_exit import wait_for_gloo_at_exit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_core.services.process_group import ProcessGroupFactory

logger = logging.getLogger(__name__)

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_BACKEND = "drivetrain_factory"
_TIMEOUT = timedelta(minutes=10)
# The factory behind the registered backend: torch keeps a backend for good, and calls
# it again for each subgroup.
_current: dict[str, ProcessGroupFactory] = {}


class TorchProcessGroupFactory:
    """Makes process groups of torch's own backends, without making one the default.

    Args:
        backend: `"gloo"`, `"nccl"`, another one that is registered with torch, or one
            for each device as torch writes it (`"cpu:gloo,cuda:nccl"`). By default Gloo
            for CPU tensors and, where this machine has accelerators and torch a backend
            for them (NCCL for GPUs), that one for theirs.

    Raises:
        DistributedError: The backend is not one of these, or torch was built without.

    Example:
        >>> group = TorchProcessGroupFactory("gloo")(
        ...     dist.HashStore(), 0, 1, timedelta(seconds=30))
        >>> group.size()
        1
    """

    def __init__(self, backend: str | None = None) -> None:
        """Checks that torch has the backend."""
        self.backend = backend if backend is not None else _default_backend()
        self._by_device = _parse_backend(self.backend)

    def __call__(
        self, store: Store, rank: int, world_size: int, timeout: timedelta
    ) -> dist.ProcessGroup:
        """Returns a process group, as `ProcessGroupFactory` says."""
        wait_for_gloo_at_exit()
        _check_rank(rank, world_size)
        group = dist.ProcessGroup(store, rank, world_size)
        made: dict[str, object] = {}
        for device, name in self._by_device.items():
            if name not in made:
                own_store = PrefixStore(f"{name}/", store)
                made[name] = _make_backend(name, own_store, rank, world_size, timeout)
            group._register_backend(torch.device(device), _kind(name), made[name])  # type: ignore[arg-type]
        group._set_default_backend(_kind(next(iter(self._by_device.values()))))
        return group


def init_process_group(
    factory: ProcessGroupFactory | None = None, *, timeout: timedelta = _TIMEOUT
) -> dist.ProcessGroup:
    """Makes the default process group of this program, or returns the one that stands.

    The ranks come from the environment that `torchrun` sets: RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT, and LOCAL_RANK for the GPU to use. Where none of the
    four is set, the world is this process alone, and no port is opened. Call it once,
    from the main thread, before `accelerate`.

    Args:
        factory: Makes the group; torch's own backends by default. To use what an
            installed package provides, pass `get_service("process_group")`.
        timeout: How long ranks wait for each other before an error is raised.

    Returns:
        The default group.

    Raises:
        DistributedError: The environment is partial or contradicts itself, or a group
            of another size or from another factory stands already.

    Example:
        >>> init_process_group().size()
        1
        >>> destroy_process_group()
    """
    wait_for_gloo_at_exit()
    place = _read_environment(os.environ)
    if dist.is_initialized():
        return _standing_group(factory, place)
    if place is not None:
        _choose_device(place[0], os.environ)
    if factory is None:
        factory = TorchProcessGroupFactory()
    if isinstance(factory, TorchProcessGroupFactory):
        backend = factory.backend
    else:
        backend = _BACKEND
        if _BACKEND.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(_BACKEND, _make_group, devices=_devices())
    _current["factory"] = factory
    if place is None:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(
            backend, store=store, rank=0, world_size=1, timeout=timeout
        )
    else:
        dist.init_process_group(backend, init_method="env://", timeout=timeout)
    group = dist.group.WORLD
    assert group is not None
    logger.info("rank %d of %d, backend %s", group.rank(), group.size(), backend)
    return group


def destroy_process_group() -> None:
    """Ends the default process group and all others; does nothing if none stands.

    Example:
        >>> destroy_process_group()
    """
    _current.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def _make_group(
    store: Store, rank: int, world_size: int, timeout: timedelta
) -> dist.ProcessGroup:
    return _current["factory"](store, rank, world_size, timeout)


def _standing_group(
    factory: ProcessGroupFactory | None, place: tuple[int, int] | None
) -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    if place is not None and place != (group.rank(), group.size()):
        message = (
            f"a process group stands already, as rank {group.rank()} of "
            f"{group.size()}, but the environment says rank {place[0]} of {place[1]}. "
            "Call destroy_process_group() first, or set RANK and WORLD_SIZE to match"
        )
        raise DistributedError(message)
    if factory is not None and factory is not _current.get("factory"):
        message = (
            f"a process group stands already, not made by {factory!r}. Call "
            "init_process_group() with a factory before anything else makes a group, "
            "or destroy_process_group() first"
        )
        raise DistributedError(message)
    return group


def _read_environment(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the rank and world size, or None where no launcher has set them."""
    missing = [name for name in _VARIABLES if not environment.get(name)]
    # Elastic workers have a rank, and no place to meet.
    if len(missing) == (2 if "DRIVETRAIN_ELASTIC_WORKER" in environment else 4):
        return None
    if missing:
        given = [name for name in _VARIABLES if name not in missing]
        message = (
            f"the environment sets {', '.join(given)} but not {', '.join(missing)}. "
            "Start the program with torchrun, set all of them, or unset all of them to "
            "run a single process"
        )
        raise DistributedError(message)
    rank, world_size, _ = (
        _integer(environment, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
    )
    _check_rank(rank, world_size)
    return rank, world_size


def _integer(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError as error:
        message = f"{name} must be an integer, got {environment[name]!r}"
        raise DistributedError(message) from error


def _check_rank(rank: int, world_size: int) -> None:
    if world_size < 1 or not 0 <= rank < world_size:
        message = (
            f"rank {rank} of a world of {world_size}: the world size must be at least "
            "1, and the rank from 0 to one less"
        )
        raise DistributedError(message)


def _choose_device(rank: int, environment: Mapping[str, str]) -> None:
    """Makes this process use a GPU of its own, as NCCL needs."""
    if not torch.accelerator.is_available():
        return
    count = torch.accelerator.device_count()
    local = _integer(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else rank
    if local < count:
        torch.accelerator.set_device_index(local)


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu", accelerator.type] if accelerator else ["cpu"]


def _default_backend() -> str:
    device = torch.accelerator.current_accelerator(check_available=True)
    # A device is not asked, since that starts it, and this process may fork others.
    name = device and dist.Backend.default_device_backend_map.get(device.type)
    if not device or not name or name == "fake" or not dist.is_backend_available(name):
        return "gloo"
    # One GPU cannot serve two ranks of NCCL, and Gloo takes what lies on it.
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    count = torch.accelerator.device_count()
    if name != "nccl" or ranks <= count:
        return f"cpu:gloo,{device.type}:{name}"
    logger.warning(
        "%d ranks share %d devices, which %s cannot: using Gloo", ranks, count, name
    )
    return "gloo"


def _parse_backend(backend: str) -> dict[str, str]:
    """Returns the name of a backend for each type of device."""
    pairs = [part.partition(":") for part in backend.lower().split(",")]
    if len(pairs) == 1 and not pairs[0][1]:
        name = pairs[0][0]
        devices = dist.Backend.backend_capability.get(name, [])
        by_device = dict.fromkeys(_devices() if name == "gloo" else devices, name)
    else:
        by_device = {device.strip(): name.strip() for device, _, name in pairs}
    known = ["gloo", "nccl", *(name.lower() for name in dist.Backend._plugins)]
    if not by_device or not set(by_device.values()) <= set(known):
        message = (
            f"the backend must be made of {', '.join(known)}, got {backend!r}. For "
            "another one, pass a ProcessGroupFactory of your own"
        )
        raise DistributedError(message)
    for name in by_device.values():
        if not dist.is_backend_available(name):
            message = f"this build of torch {torch.__version__} has no {name} backend"
            raise DistributedError(message)
    return by_device


def _kind(name: str) -> dist.ProcessGroup.BackendType:
    kinds = dist.ProcessGroup.BackendType
    return getattr(kinds, name.upper(), kinds.CUSTOM)


def _make_backend(
    name: str, store: Store, rank: int, world_size: int, timeout: timedelta
) -> object:
    """Returns one backend of a group, made as torch makes it for a default group."""
    if name == "gloo":
        return dist.ProcessGroupGloo(store, rank, world_size, timeout)
    if name == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, world_size, options)
    plugin: Any = dist.Backend._plugins[name.upper()]
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, world_size, timeout)
    group: Any = dist.distributed_c10d._DistributedBackendOptions()  # type: ignore[attr-defined]
    group.store, group.timeout = store, timeout
    group.group_rank, group.group_size = rank, world_size
    return plugin.creator_fn(group, None)
