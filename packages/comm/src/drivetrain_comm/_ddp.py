"""Gives DDP modules over tuned groups small buckets, and the hook that merges them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from drivetrain_comm._fusion import Fusion, merge_buckets
from drivetrain_comm._pilot import Pilot
from drivetrain_comm._process_group import TunedProcessGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

__all__ = ["attach", "bucket_cap_mb"]

logger = logging.getLogger(__name__)

# DDP's buckets are the grain of what can be merged: so many, within these sizes.
_NUM_BUCKETS = 48
_LEAST_MB, _MOST_MB = 0.5, 25.0


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


def attach(ddp: Any) -> None:
    """Gives a DDP module the hook, unless it has one of the user's, or needs none.

    Called before each forward pass; all but the first return at once.
    """
    if getattr(ddp, "_drivetrain_fusion", None) is not None:
        return
    ddp._drivetrain_fusion = False
    group = ddp.process_group
    parameters = [p for p in ddp.module.parameters() if p.requires_grad]
    if not _is_tuned(group) or any(p.device.type != "cpu" for p in parameters):
        return
    if ddp._comm_hooks or ddp.mixed_precision is not None:
        logger.info("gradients are left to the module's own communication hook")
        return
    if group.transport.lacks:
        return
    fusion = Fusion(group, Pilot(group))
    ddp.register_comm_hook(fusion, merge_buckets)
    ddp._drivetrain_fusion = fusion


def _group_of(arguments: Mapping[str, Any]) -> Any:
    mesh = arguments.get("device_mesh")
    if mesh is not None:
        return mesh.get_group(mesh_dim=0)
    return arguments.get("process_group") or dist.group.WORLD


def _is_tuned(group: Any) -> bool:
    return isinstance(group, TunedProcessGroup) and group.size() > 1
