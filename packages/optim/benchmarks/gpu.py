"""Steps on a GPU, against what its memory can carry."""

import statistics
import time

import torch
from speed import make_params

from drivetrain_core.testing import Row
from drivetrain_optim import AGD, LAMB, explain

BYTES = {AGD: 28, LAMB: 44}


def seconds_of(work, rounds=20):
    """The median time of queued work, by events."""
    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def copy_bandwidth(num_bytes=4 << 30):
    source = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds_of(lambda: target.copy_(source))


def bandwidth(kind):
    def measure(quick):
        if not torch.cuda.is_available():
            return Row(figure="-", holds=None, proven_on="-", needs_gpu=True)
        numel = 100_000_000 if quick else 1_000_000_000
        optimizer = kind(make_params(numel, device="cuda"), max_grad_norm=_clip(kind))
        rate = BYTES[kind] * numel / seconds_of(optimizer.step)
        adamw = torch.optim.AdamW(make_params(numel, device="cuda"), fused=True)
        peer = BYTES[AGD] * numel / seconds_of(adamw.step)
        limit = copy_bandwidth()
        return Row(
            figure=f"{rate / limit:.0%} of copy ({rate / 1e12:.2f} TB/s)",
            holds=rate >= 0.85 * limit,
            proven_on=torch.cuda.get_device_name(),
            details={
                "adamw_fused": peer / limit,
                "path": explain(optimizer).uses[0].path,
            },
        )

    return measure


def _clip(kind):
    # LAMB is judged with clipping in it: 44 bytes, of which clipping reads 4.
    return 1.0 if kind is LAMB else None


def host_time(quick):
    """Host time of a step over 1,000 tensors while the GPU is not waited for."""
    if not torch.cuda.is_available():
        return Row(figure="-", holds=None, proven_on="-", needs_gpu=True)
    optimizer = AGD(make_params(1_000_000, 1000, "cuda"))
    times = []
    for round_ in range(60):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.step()
        if round_ >= 10:
            times.append(time.perf_counter() - start)
    found = statistics.median(times) * 1e6
    return Row(
        figure=f"{found:.0f} us",
        holds=found <= 150,
        proven_on=torch.cuda.get_device_name(),
    )
