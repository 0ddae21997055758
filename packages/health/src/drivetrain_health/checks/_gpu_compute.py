"""How fast each GPU multiplies matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_core.accelerators import accelerator_of
from drivetrain_health.checks._gpus import gpus
from drivetrain_health.checks._task import CheckFailedError, Found, repeat

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task

_SIZE, _AT_ONCE = 4096, 8


def measure(task: Task) -> Found:
    """Multiplies matrices on each GPU, in bfloat16 if it can.

    Returns `gpu0_compute_tflops` and so on.

    Raises:
        NotHereError: There is no GPU.
        CheckFailedError: A product is wrong.
    """
    rates = {}
    for device in gpus():
        task.note(f"multiplying on {device}")
        rates[f"gpu{device.index}_compute_tflops"] = _rate(device, task.measure_s)
    return Found(rates)


def _rate(device: torch.device, measure_s: float) -> float:
    can = accelerator_of(device).facts(device.index).dtypes
    dtype = torch.bfloat16 if "bfloat16" in can else torch.float32
    x = torch.ones(_SIZE, _SIZE, device=device, dtype=dtype)
    product = x @ x
    torch.accelerator.synchronize(device)

    def multiply() -> None:
        # Several at a time, so that the device never waits for the host.
        for _ in range(_AT_ONCE):
            torch.mm(x, x, out=product)
        torch.accelerator.synchronize(device)

    num_times, took_s = repeat(multiply, measure_s)
    # A sum of ones that is a power of two is exact in bfloat16.
    if not bool((product == _SIZE).all()):
        message = f"a product on {device} is wrong"
        raise CheckFailedError(message)
    return 2 * _SIZE**3 * _AT_ONCE * num_times / took_s / 1e12
