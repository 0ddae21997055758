"""Measures what the device does at best: products, memory traffic, calls, all-reduce.

Run as `python -m drivetrain_search.prediction.probes SPEC RANK FD PARENT`, it is one rank of
the measurement of an all-reduce, in a process group of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import statistics
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.processes import end_with_parent
from drivetrain_search.prediction.time_model import Collective, Rates
from drivetrain_search.process.worker import be_taken_first

if TYPE_CHECKING:
    from collections.abc import Callable

_SLICE_S = 0.5
# Of a CPU, and of any other device, which needs more to be busy.
_PRODUCT_ROWS = (128, 256, 512, 1024), (1024, 2048, 4096, 8192)
_TRAFFIC_BYTES = 1 << 26, 1 << 29
_CALLS = 200
_SMALL_BYTES, _LARGE_BYTES = 1 << 13, 1 << 22
_REPEATS = 10


def measure_rates(
    device: torch.device, num_threads: int | None = None, slice_s: float = _SLICE_S
) -> Rates:
    """Returns the rates of a device.

    Args:
        device: Where to measure.
        num_threads: Threads of an operator on a CPU; as they are when None.
        slice_s: Seconds for each of about four measurements.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        can = accelerator_of(device).facts(device.index or 0).dtypes
        return Rates(
            flops_per_s={
                name: _product_rate(device, getattr(torch, name), slice_s)
                for name in ("float32", "bfloat16")
                if name in can
            },
            bytes_per_s=_traffic_rate(device, slice_s),
            overhead_s=_call_s(device, slice_s),
        )
    finally:
        torch.set_num_threads(before)


def _product_rate(device: torch.device, dtype: torch.dtype, slice_s: float) -> float:
    """Returns the best rate over several sizes, smallest first, as time allows."""
    best, end = 0.0, time.perf_counter() + slice_s
    for rows in _PRODUCT_ROWS[device.type != "cpu"]:
        a = torch.randn(rows, rows, device=device).to(dtype)
        seconds = _fastest(partial(torch.mm, a, a), device, end)
        best = max(best, 2.0 * rows**3 / seconds)
        if time.perf_counter() > end:
            break
    return best


def _traffic_rate(device: torch.device, slice_s: float) -> float:
    size = _TRAFFIC_BYTES[device.type != "cpu"]
    memory = accelerator_of(device).memory(device.index or 0)
    # A program may need the rest.
    size = size if memory is None else min(size, memory[0] // 8)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    end = time.perf_counter() + slice_s
    return 2.0 * size / _fastest(lambda: target.copy_(source), device, end)


def _call_s(device: torch.device, slice_s: float) -> float:
    x = torch.ones(1, device=device)

    def calls() -> None:
        for _ in range(_CALLS):
            x.add(1.0)

    return _fastest(calls, device, time.perf_counter() + slice_s) / _CALLS


def _fastest(run: Callable[[], object], device: torch.device, end: float) -> float:
    """Returns the shortest of some runs, at least two, the first one not counted."""
    run()
    times: list[float] = []
    while len(times) < 2 or (time.perf_counter() < end and len(times) < _REPEATS):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - start)
        if times[-1] > end - start:
            break
    return max(min(times), 1e-9)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def alpha_beta(small_s: float, large_s: float) -> Collective:
    """Returns the cost of an all-reduce from the seconds of a small and a large one.

    Example:
        >>> alpha_beta(1e-3, 1e-3).beta_s_per_byte
        0.0
    """
    beta = max(0.0, (large_s - small_s) / (_LARGE_BYTES - _SMALL_BYTES))
    alpha = max(0.0, small_s - beta * _SMALL_BYTES)
    return Collective(alpha_s=alpha, beta_s_per_byte=beta)


def measure_all_reduce() -> Collective:
    """Returns the cost in the default process group; every rank must call this."""
    return alpha_beta(_all_reduce_s(_SMALL_BYTES), _all_reduce_s(_LARGE_BYTES))


def _all_reduce_s(size: int) -> float:
    tensor = torch.ones(size // 4)
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        torch.distributed.all_reduce(tensor)
        times.append(time.perf_counter() - start)
        tensor.fill_(1.0)
    return statistics.median(times[1:])


def main(argv: list[str]) -> int:
    """Measures as one rank, answers on the socket, and returns the exit code."""
    spec_path, rank, descriptor, parent = argv
    end_with_parent(int(parent))
    be_taken_first()
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{spec['store']}",
        rank=int(rank),
        world_size=spec["world_size"],
        timeout=timedelta(seconds=spec["timeout_s"]),
    )
    found = dataclasses.asdict(measure_all_reduce())
    with socket.socket(fileno=int(descriptor)) as channel:
        channel.sendall(json.dumps(found).encode() + b"\n")
    torch.distributed.barrier()
    # Gloo's threads may outlive an orderly exit.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
