"""Attaches the communication hook to DDP modules over tuned groups."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_comm.backend._process_group import TunedProcessGroup
from drivetrain_comm.ddp._compress import Cast, Exact
from drivetrain_comm.ddp._ddp_tuner import DdpTuner
from drivetrain_comm.ddp._fusion import Fusion, merge_buckets
from drivetrain_comm.ddp._powersgd import PowerSGD
from drivetrain_comm.selection._choice import STOCK
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drivetrain_comm.ddp._compress import Compressor

logger = logging.getLogger(__name__)

# DDP's buckets are the grain of what can be merged: so many, within these sizes.
_NUM_BUCKETS = 48
_LEAST_MB, _MOST_MB = 0.5, 25.0

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
    if any(p.device.type != "cpu" for p in parameters):
        return None
    total_mb = sum(p.nbytes for p in parameters) / (1 << 20)
    return min(max(total_mb / _NUM_BUCKETS, _LEAST_MB), _MOST_MB)


def needs_hook(ddp: Any) -> bool:
    """Returns whether `attach` is due before this forward pass.

    `torch.compile` traces this, and not `attach`.
    """
    if getattr(ddp, "_drivetrain_fusion", None) is not None:
        return False
    # Other passes are not made by all ranks at the same time.
    return torch.is_grad_enabled() and bool(ddp.require_backward_grad_sync)


def attach(ddp: Any) -> None:
    """Gives a DDP module the hook, unless it has one of the user's, or needs none."""
    # A copy of a module has the hooks' names, but not the hooks.
    ddp._comm_hooks = [one for one in ddp._comm_hooks if one[0] is not merge_buckets]
    ddp._drivetrain_fusion = False
    group = ddp.process_group
    if not _is_tuned(group):
        return
    obstacle = _obstacle(ddp, group)
    compression = group.settings.compression
    if obstacle and compression != "none":
        message = f"gradients cannot be compressed by {compression}: {obstacle}"
        raise DistributedError(message)
    if obstacle:
        logger.info("gradients are left to torch: %s", obstacle)
        return
    fusion = Fusion(DdpTuner(group), _COMPRESSORS[compression](group))
    ddp.register_comm_hook(fusion, merge_buckets)
    ddp._drivetrain_fusion = fusion


def _obstacle(ddp: Any, group: TunedProcessGroup) -> str | None:
    """Returns why a module cannot have the hook, or None."""
    parameters = [p for p in ddp.module.parameters() if p.requires_grad]
    if any(p.device.type != "cpu" for p in parameters):
        return "the module is not on the CPU"
    if ddp._comm_hooks or ddp.mixed_precision is not None:
        return "the module has a communication hook of its own"
    if group.settings.algorithm == STOCK:
        return "the algorithm is fixed to torch's own"
    lacks = group.transport.lacks
    return f"there is no engine ({lacks})" if lacks else None


def _group_of(arguments: Mapping[str, Any]) -> Any:
    mesh = arguments.get("device_mesh")
    if mesh is not None:
        return mesh.get_group(mesh_dim=0)
    return arguments.get("process_group") or dist.group.WORLD


def _is_tuned(group: Any) -> bool:
    return isinstance(group, TunedProcessGroup) and group.size() > 1
