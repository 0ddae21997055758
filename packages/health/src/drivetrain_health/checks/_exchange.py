"""Collectives between the CPUs of nodes, by Gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.distributed_c10d import ProcessGroupGloo

from drivetrain_health.checks._collectives import meet_and_exchange

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Found, Task


def measure(task: Task) -> Found:
    """Returns `network_all_gather_gb_per_s` and `network_all_reduce_gb_per_s`.

    Raises:
        CheckFailedError: The nodes do not reach each other, or get what was not sent.
    """
    device = torch.device("cpu")
    return meet_and_exchange(
        task, ProcessGroupGloo, device, prefix="network", synchronize=lambda: None
    )
