"""The GPUs of a node."""

from __future__ import annotations

import torch

from drivetrain_health.checks._task import NotHereError


def gpus(at_least: int = 1) -> list[torch.device]:
    """Returns the GPUs that torch can use.

    Args:
        at_least: How many are needed.

    Raises:
        NotHereError: There are fewer.
    """
    num = torch.cuda.device_count()
    if num < at_least:
        message = f"it takes {at_least} GPU that torch can use, there are {num}"
        raise NotHereError(message)
    return [torch.device("cuda", index) for index in range(num)]
