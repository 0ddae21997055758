"""Says whether a tensor can be written in place."""

from __future__ import annotations

from typing import Any

import torch

from drivetrain_core.native_library import without_memory


def unwritable(tensor: torch.Tensor) -> str:
    """Returns why a tensor cannot be restored in place, and what to do; "" if it can.

    Args:
        tensor: The tensor; of a DTensor the part on this rank counts.

    Example:
        >>> unwritable(torch.zeros(1).expand(3))
        'is a view whose elements share memory: give a clone() of it'
        >>> unwritable(torch.zeros(3))
        ''
    """
    if tensor.is_nested:
        return "is a nested tensor, which no checkpoint holds: give a dense one"
    if tensor.is_meta:
        return "is on the meta device, without memory: make it with to_empty() first"
    local: Any = tensor.detach()
    local = local.to_local() if hasattr(local, "to_local") else local
    if local.layout is not torch.strided:
        return f"is a tensor of {local.layout}: give a dense one"
    if local.is_inference() and not torch.is_inference_mode_enabled():
        return "is an inference tensor: give a clone() of it, or restore in that mode"
    # Blocks of a tensor lie in the memory of others.
    is_whole = local.is_cpu and not hasattr(local, "local_chunks")
    if is_whole and (why := without_memory(local)):
        return why
    reach = 0
    for stride, size in sorted(zip(local.stride(), local.shape, strict=True)):
        if size > 1 and stride <= reach and local.numel():
            return "is a view whose elements share memory: give a clone() of it"
        reach += (size - 1) * stride
    return ""
