"""Activation: unchanged scripts use tuned process groups and merged gradients."""

from __future__ import annotations

import functools
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType, Reducer
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from drivetrain_comm._settings import settings_from
from drivetrain_comm.backend._process_group import (
    TunedProcessGroup,
    TunedProcessGroupFactory,
)
from drivetrain_comm.ddp._attach import attach, bucket_cap_mb
from drivetrain_comm.stores import register_redis
from drivetrain_core import Numerics

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from torch.distributed.distributed_c10d import Store

    from drivetrain_comm._settings import Settings
    from drivetrain_comm.ddp._fusion import Fusion

logger = logging.getLogger(__name__)

BACKEND = "drivetrain"
"""The name for `torch.distributed.init_process_group`."""

_USUAL_BUCKET_BYTES = 25 << 20

_lock = threading.Lock()
_originals: dict[tuple[Any, str], Any] = {}
_fusions: WeakKeyDictionary[Any, Fusion] = WeakKeyDictionary()


@dataclass(slots=True)
class _ActiveSettings:
    """The settings of `enable`, and its last factory."""

    settings: Settings | None = None
    factory: TunedProcessGroupFactory | None = None


_active = _ActiveSettings()


def register() -> None:
    """Makes the backend `"drivetrain"` and `redis://` known to torch.

    DDP modules over groups of that backend merge their gradients; others, and groups of
    other backends, are as before. Importing this package after torch does it.

    Example:
        >>> register()
        >>> import torch.distributed as dist
        >>> dist.init_process_group(
        ...     "drivetrain", store=dist.HashStore(), rank=0, world_size=1)
        >>> dist.destroy_process_group()
    """
    register_redis()
    if BACKEND.upper() not in dist.Backend._plugins:
        here = torch.accelerator.current_accelerator()
        devices = ["cpu", here.type if here else "cuda"]
        dist.Backend.register_backend(BACKEND, _make_group, devices=devices)
    _patch(DistributedDataParallel, "__init__", _with_small_buckets)
    _patch(DistributedDataParallel, "_ddp_init_helper", _with_hook)
    _patch(dist, "_register_comm_hook", _instead_of_ours)
    _patch(dist, "_register_builtin_comm_hook", _instead_of_ours)
    _patch(Reducer, "_set_forward_pass_work_handle", _kept)


def enable(**settings: Any) -> None:
    """Makes `init_process_group` with torch's usual backends, or without one, tuned.

    Call it before the process group is made. Other backends stay as they are.

    Args:
        **settings: Fields of `Settings` to fix instead of measuring them.

    Raises:
        DistributedError: A setting is unknown or out of range.

    Example:
        >>> enable(streams=2)
        >>> is_enabled()
        True
        >>> disable()
    """
    _active.settings = settings_from(**settings)
    if dist.is_initialized():
        logger.warning(
            "enable() came after init_process_group(): the group that exists stays as it"
            " is; call it before"
        )
    register()
    _patch(distributed_c10d, "_new_process_group_helper", _with_tuned_group)


def disable() -> None:
    """Undoes `enable` and `register`, for groups and modules that are yet to be made."""
    with _lock:
        for (owner, name), original in _originals.items():
            setattr(owner, name, original)
        _originals.clear()
        _active.settings = _active.factory = None


def is_enabled() -> bool:
    """Returns whether `enable` was called."""
    return (distributed_c10d, "_new_process_group_helper") in _originals


def status() -> tuple[str, ...]:
    """Returns what is tuned in this process: its groups, and gradients of DDP modules.

    Of gradients it says how far they may be from torch's: by the order of additions, or,
    where compression was asked for, by a lower precision.

    Example:
        >>> status()
        ()
    """
    groups = [
        repr(group)
        for group in distributed_c10d._world.pg_map
        if isinstance(group, TunedProcessGroup)
    ]
    for fusion in _fusions.values():
        if tuner := fusion.tuner:
            is_whole = fusion.group.settings.compression == "none"
            numerics = Numerics.REORDER if is_whole else Numerics.LOW_PRECISION
            said = f"gradients, {tuner.phase}: {tuner.plan} ({numerics.name.lower()})"
            groups.append(said)
    return tuple(groups)


def _patch(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    with _lock:
        if (owner, name) not in _originals:
            original = getattr(owner, name)
            _originals[owner, name] = original
            setattr(owner, name, functools.wraps(original)(wrap(original)))


def _with_tuned_group(original: Callable[..., Any]) -> Callable[..., Any]:
    def _new_process_group_helper(
        size: int,
        rank: int,
        ranks: list[int],
        backend: Any,
        store: Store,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        inner = _inner_backend(backend)
        if inner is None:
            logger.info("backend %s is left as it is", backend)
            return original(size, rank, ranks, backend, store, *args, **kwargs)
        _active.factory = TunedProcessGroupFactory(
            inner or None, settings=_active.settings
        )
        if kwargs.pop("backend_options", None) is not None:
            logger.warning("the options of backend %s are not used", backend)
        # Eager NCCL binds a device, which torch does for its own backends only.
        kwargs.pop("device_id", None)
        group, place = original(size, rank, ranks, BACKEND, store, *args, **kwargs)
        if rank == 0:
            logger.info("made by drivetrain-comm: %s", group)
        is_asked = str(backend).lower() == BACKEND
        if isinstance(group, TunedProcessGroup) and not is_asked:
            # Whoever asks for the backend is told what the script has named.
            world = distributed_c10d._world
            world.pg_map[group] = backend, place
            config = distributed_c10d.BackendConfig(backend)
            world.pg_backend_config[group] = str(config)
        return group, place

    return _new_process_group_helper


def _inner_backend(backend: str | None) -> str | None:
    """Returns torch's backend below the tuned one, empty for its default, or None."""
    name = (backend or "").lower()
    if name in {"", BACKEND, "undefined"}:
        return ""
    parts = {part.rpartition(":")[2].strip() for part in name.split(",")}
    # Torch's stand-in that sends nothing claims the devices that no backend serves.
    known = {"gloo", *dist.Backend.default_device_backend_map.values()} - {"fake"}
    return name if parts <= known else None


def _make_group(
    store: Store, rank: int, world_size: int, timeout: timedelta
) -> TunedProcessGroup:
    factory = _active.factory or TunedProcessGroupFactory()
    return factory(store, rank, world_size, timeout)


def _with_small_buckets(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        # Positional arguments as far as the size of buckets are nobody's habit.
        cap = None
        if kwargs.get("bucket_cap_mb") is None and len(args) < 5:
            cap = bucket_cap_mb(module, kwargs)
        if cap is None:
            original(self, module, *args, **kwargs)
            return
        original(self, module, *args, **{**kwargs, "bucket_cap_mb": cap})
        # Now only torch.compile reads it, which cuts its graphs there.
        self.bucket_bytes_cap = _USUAL_BUCKET_BYTES

    return __init__


def _with_hook(original: Callable[..., None]) -> Callable[..., None]:
    def _ddp_init_helper(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        fusion = attach(self)
        if fusion is not None:
            _fusions[self.reducer] = fusion

    return _ddp_init_helper


def _instead_of_ours(original: Callable[..., None]) -> Callable[..., None]:
    """Gives way to a hook of the user's, since a module has place for one."""

    def register(reducer: Any, *args: Any) -> None:
        fusion = _fusions.get(reducer)
        if fusion is None or fusion.hook is not None or args[0] is fusion:
            original(reducer, *args)
        elif len(args) > 1:
            fusion.give_way(*args)
        else:
            ours = {BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook}
            hook = ours.get(args[0], default_hooks.fp16_compress_hook)
            fusion.give_way(fusion.group, hook)

    return register


def _kept(original: Callable[..., None]) -> Callable[..., None]:
    def _set_forward_pass_work_handle(reducer: Any, work: Any, *args: Any) -> None:
        # What is left of it in C++ when Python forgets it never ends.
        if fusion := _fusions.get(reducer):
            fusion.work = work
        original(reducer, work, *args)

    return _set_forward_pass_work_handle
