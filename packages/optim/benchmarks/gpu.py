"""Steps on a GPU, against what its memory can carry."""

import statistics
import time

import torch
from speed import make_params, ratio

from drivetrain_optim import AGD, LAMB, explain
from drivetrain_testing import Row, gpu_copy_bandwidth, gpu_seconds

BYTES = {AGD: 28, LAMB: 44}


def bandwidth(kind):
    def measure(quick):
        if not torch.cuda.is_available():
            return Row(figure="-", holds=None, proven_on="-", needs_gpu=True)
        numel = 100_000_000 if quick else 1_000_000_000
        optimizer = kind(make_params(numel, device="cuda"), max_grad_norm=_clip(kind))
        rate = BYTES[kind] * numel / gpu_seconds(optimizer.step)
        adamw = torch.optim.AdamW(make_params(numel, device="cuda"), fused=True)
        peer = BYTES[AGD] * numel / gpu_seconds(adamw.step)
        limit = gpu_copy_bandwidth(4 << 30)
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
