"""Steps on a GPU, against what its memory can carry."""

import statistics
import time

import torch
from speed import make_params, ratio

from drivetrain_optim import AGD, LAMB, explain
from drivetrain_testing import Row

BYTES = {AGD: 28, LAMB: 44}


# About 10 ms, and what is queued meanwhile.
_QUEUE_CYCLES, _CALLS = 20_000_000, 5


def seconds_of(work, rounds=20):
    """The median time of queued work, by events."""
    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The device is kept busy until the host has queued all: what is measured is the
        # device's time, not the time of launches.
        torch.cuda._sleep(_QUEUE_CYCLES)
        start.record()
        for _ in range(_CALLS):
            work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / _CALLS)
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
    optimizers = {
        "agd": AGD(make_params(1_000_000, 1000, "cuda")),
        "adamw": torch.optim.AdamW(make_params(1_000_000, 1000, "cuda"), fused=True),
    }
    times = {name: [] for name in optimizers}
    for round_ in range(60):
        for name, optimizer in optimizers.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            optimizer.step()
            if round_ >= 10:
                times[name].append(time.perf_counter() - start)
    found = ratio(times, "agd", "adamw")
    microseconds = {n: statistics.median(t) * 1e6 for n, t in times.items()}
    return Row(
        figure=f"{found:.2f} x ({microseconds['agd']:.0f} us)",
        holds=found <= 1.0,
        proven_on=torch.cuda.get_device_name(),
        details={"microseconds": microseconds},
    )
