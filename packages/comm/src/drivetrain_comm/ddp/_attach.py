"""Attaches the communication hook to DDP modules over tuned groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_comm_hook

from drivetrain_comm.backend._process_group import TunedProcessGroup
from drivetrain_comm.ddp._compress import Cast, Exact
from drivetrain_comm.ddp._fusion import Fusion, merge_buckets, require_exact
from drivetrain_comm.ddp._on_device import DeviceFusion, OnDevice
from drivetrain_comm.ddp._powersgd import PowerSGD
from drivetrain_comm.selection._choice import STOCK
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drivetrain_comm.ddp._compress import Compressor

# DDP's buckets are the grain of what can be merged: so many, within these sizes.
_NUM_BUCKETS = 48
_LEAST_MB, _MOST_MB = 0.5, 25.0
_FOR_CPU = ("algorithm", "compression", "schedule", "streams")

_COMPRESSORS: dict[str, Callable[[TunedProcessGroup], Compressor]] = {
    "none": Exact,
    "fp16": lambda group: Cast(group, torch.float16),
    "bf16": lambda group: Cast(group, torch.bfloat16),
    "powersgd": PowerSGD,
}


def bucket_cap_mb(
    module: torch.nn.Module, arguments: Mapping[str, Any]
) -> float | None:
    """Returns how large DDP's own buckets may be, in MiB, or None to leave them alone.

    Args:
        module: What DDP wraps.
        arguments: What it is called with.
    """
    if arguments.get("bucket_cap_mb_list") is not None or not _is_tuned(
        _group_of(arguments)
    ):
        return None
    parameters = [p for p in module.parameters() if p.requires_grad]
    if len({p.device for p in parameters}) > 1:
        return None
    total_mb = sum(p.nbytes for p in parameters) / (1 << 20)
    return min(max(total_mb / _NUM_BUCKETS, _LEAST_MB), _MOST_MB)


def attach(ddp: Any) -> Fusion | None:
    """Gives a DDP module the hook, unless it needs none; returns what it calls.

    Raises:
        DistributedError: What is fixed cannot be done where the module is.
    """
    group = ddp.process_group
    if not _is_tuned(group):
        return None
    parameters = [p for p in ddp.module.parameters() if p.requires_grad]
    devices = {parameter.device for parameter in parameters}
    is_on_cpu = all(device.type == "cpu" for device in devices)
    for name in () if is_on_cpu else _FOR_CPU:
        if getattr(group.settings, name) not in {None, "none", STOCK}:
            message = f"{group.settings}: leave {name} out, which is for the CPU only"
            raise DistributedError(message)
    obstacle = ""
    if len(devices) > 1:
        obstacle = "the module is on several devices"
    elif ddp.mixed_precision is not None:
        obstacle = "the module has a communication hook of its own"
    elif group.settings.algorithm == STOCK:
        obstacle = "the algorithm is fixed to torch's own"
    if obstacle:
        require_exact(group, obstacle)
        return None
    if is_on_cpu:
        fusion = Fusion(ddp, group, _COMPRESSORS[group.settings.compression])
    else:
        fusion = DeviceFusion(ddp, group, OnDevice)
    _register_comm_hook(ddp.reducer, fusion, merge_buckets)
    return fusion


def _group_of(arguments: Mapping[str, Any]) -> Any:
    mesh = arguments.get("device_mesh")
    if mesh is not None:
        return mesh.get_group(mesh_dim=0)
    return arguments.get("process_group") or dist.group.WORLD


def _is_tuned(group: Any) -> bool:
    return isinstance(group, TunedProcessGroup) and group.size() > 1
