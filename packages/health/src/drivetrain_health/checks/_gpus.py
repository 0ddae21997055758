"""The GPUs of a node, or whatever accelerators it has."""

from __future__ import annotations

import torch

from drivetrain_core.accelerators import accelerator_of
from drivetrain_health.checks._task import NotHereError


def gpus(at_least: int = 1) -> list[torch.device]:
    """Returns the GPUs that torch can use.

    Args:
        at_least: How many are needed.

    Raises:
        NotHereError: There are fewer.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    num = 0 if found is None else accelerator_of(found).device_count()
    if num < at_least:
        message = f"it takes {at_least} GPU that torch can use, there are {num}"
        raise NotHereError(message)
    device_type = "cpu" if found is None else found.type
    return [torch.device(device_type, index) for index in range(num)]
