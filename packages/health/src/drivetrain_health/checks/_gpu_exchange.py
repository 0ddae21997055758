"""Collectives between the first GPUs of nodes, by NCCL or what their kind has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_core import DistributedError
from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_health.checks._collectives import meet_and_exchange
from drivetrain_health.checks._gpus import gpus
from drivetrain_health.checks._task import NotHereError

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Found, Task


def measure(task: Task) -> Found:
    """Returns `network_gpu_all_gather_gb_per_s` and `network_gpu_all_reduce_gb_per_s`.

    Raises:
        NotHereError: There is no GPU, or no backend for its collectives.
        CheckFailedError: The nodes do not reach each other, or get what was not sent.
    """
    device = gpus()[0]
    backend = accelerator_of(device).facts(device.index).collectives
    try:
        make = TorchProcessGroupFactory(f"{device.type}:{backend}")
    except DistributedError as error:
        raise NotHereError(str(error)) from error
    torch.accelerator.set_device_index(device.index)
    return meet_and_exchange(
        task,
        make,
        device,
        prefix="network_gpu",
        synchronize=lambda: torch.accelerator.synchronize(device),
    )
