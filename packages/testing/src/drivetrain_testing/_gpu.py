"""How long a GPU takes, by its own clock."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# About 10 ms, and what is queued meanwhile.
_QUEUE_CYCLES, _CALLS = 20_000_000, 5


def gpu_seconds(work: Callable[[], object], rounds: int = 20) -> float:
    """Returns the median time of queued work on the current GPU, in seconds.

    The device is kept busy until the host has queued all: what is measured is the
    device's time, not the time of launches.

    Args:
        work: Queues kernels on the current stream.
        rounds: How often five calls of it are timed.

    Raises:
        RuntimeError: There is no CUDA device.
    """
    if not torch.cuda.is_available():
        message = "a GPU's clock needs a CUDA device, and torch finds none"
        raise RuntimeError(message)
    for _ in range(3):
        work()
    times: list[float] = []
    for _ in range(rounds):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        start, end = events
        torch.cuda._sleep(_QUEUE_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(_CALLS):
            work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / _CALLS)
    return statistics.median(times)


def gpu_copy_bandwidth(num_bytes: int) -> float:
    """Returns what one large copy on the current GPU reads and writes, in bytes/s.

    Args:
        num_bytes: The size of the copy.
    """
    source = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * num_bytes / gpu_seconds(lambda: target.copy_(source))
