"""What the devices of a state can do beside their work."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from drivetrain_core.accelerators import accelerator_of

if TYPE_CHECKING:
    import torch


@functools.cache
def can_overlap(device: torch.device) -> bool:
    """Whether copies to and from page-locked memory run beside the device's other work.

    Example:
        >>> import torch
        >>> can_overlap(torch.device("cpu"))
        False
    """
    if device.type == "cpu":
        return False
    facts = accelerator_of(device).facts(device.index or 0)
    return facts.streams and facts.pinned_memory
