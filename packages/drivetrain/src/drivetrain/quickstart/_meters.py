"""What a device can do and what a step asks of it."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

from drivetrain.quickstart._program import undone
from drivetrain_core import undisturbed

if TYPE_CHECKING:
    from drivetrain_core import Accelerated

__all__ = ["count_flops", "peak_flops_per_s", "peak_memory_bytes"]

_SMALL, _ROWS_CPU, _ROWS_DEVICE = 256, 1024, 8192
_NUM_PRODUCTS = 5
# A format that is so much slower than fp32 is no way to the peak, and takes long.
_WORTH_WHILE = 0.5


def count_flops(accelerated: Accelerated) -> int | None:
    """Returns the floating-point operations of a forward and backward pass.

    None where they cannot be counted: torch does not see into every operator.
    """
    with undisturbed(accelerated.loader):
        batch = next(iter(accelerated.loader))
    with undone(accelerated):
        try:
            with FlopCounterMode(display=False) as counter:
                accelerated.train_step.accumulate(batch)
        except Exception:  # noqa: BLE001 - a meter must not end what it measures
            return None
    return int(counter.get_total_flops()) or None


def peak_flops_per_s(device: torch.device) -> float:
    """Returns the best rate of a square matrix product, in the fastest format.

    Args:
        device: Where to multiply.

    Example:
        >>> peak_flops_per_s(torch.device("cpu")) > 0
        True
    """
    rows = _ROWS_CPU if device.type == "cpu" else _ROWS_DEVICE
    full, half = torch.float32, torch.bfloat16
    formats = [full]
    if _rate(device, half, _SMALL) > _WORTH_WHILE * _rate(device, full, _SMALL):
        formats.append(half)
    return max(_rate(device, dtype, rows) for dtype in formats)


def _rate(device: torch.device, dtype: torch.dtype, rows: int) -> float:
    a, b = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
    times_s = []
    for _ in range(_NUM_PRODUCTS + 1):
        began_s = time.perf_counter()
        a @ b
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times_s.append(time.perf_counter() - began_s)
    return 2.0 * rows**3 / statistics.median(times_s[1:])


def peak_memory_bytes(device: torch.device) -> int:
    """Returns the peak of a device's memory; on a CPU, of this process's."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
