"""How fast memory is copied to each GPU and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_core.accelerators import accelerator_of
from drivetrain_health.checks._gpus import gpus
from drivetrain_health.checks._task import CheckFailedError, Found, repeat

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task

_NUM_BYTES = 256 << 20


def measure(task: Task) -> Found:
    """Copies memory to each GPU and back, pinned memory if the GPUs take it.

    Returns `gpu0_from_host_gb_per_s`, `gpu0_to_host_gb_per_s` and so on.

    Raises:
        NotHereError: There is no GPU.
        CheckFailedError: What comes back is not what was sent.
    """
    rates = {}
    devices = gpus()
    source = torch.arange(_NUM_BYTES // 8)
    back = torch.zeros_like(source)
    if accelerator_of(devices[0]).facts().pinned_memory:
        source, back = source.pin_memory(), back.pin_memory()
    for device in devices:
        task.note(f"copying to and from {device}")
        there = source.to(device)
        for name, to, from_ in (("from", there, source), ("to", back, there)):
            rate = _rate(to, from_, device, task.measure_s / 2)
            rates[f"gpu{device.index}_{name}_host_gb_per_s"] = rate
        if not torch.equal(source, back):
            num = int((source != back).sum())
            message = f"{num} of {source.numel()} words came back wrong from {device}"
            raise CheckFailedError(message)
        back.zero_()
    return Found(rates)


def _rate(
    to: torch.Tensor, from_: torch.Tensor, device: torch.device, measure_s: float
) -> float:
    def copy() -> None:
        to.copy_(from_, non_blocking=True)
        torch.accelerator.synchronize(device)

    torch.accelerator.synchronize(device)
    num_copies, took_s = repeat(copy, measure_s)
    return to.nbytes * num_copies / took_s / 1e9
