"""Search on a real GPU: trials, memory that runs out, and the meters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drivetrain_core import accelerate
from drivetrain_search.process.meters import peak_flops_per_s
from drivetrain_testing.programs import adamw, run_bytes

pytestmark = pytest.mark.gpu


def test_search_runs_on_the_gpu_and_is_not_slower():
    accelerated = run_bytes(
        "auto", budget={"seconds": 240, "trials": 6}, deny=["compile"]
    )
    report = accelerated.report
    assert report.baseline.usable
    assert report.baseline.measurement.peak_memory_bytes > 0
    assert accelerated.plan.measured["vs_baseline"] >= 1.0


def test_out_of_memory_is_named_and_the_device_left_usable():
    class Greedy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 1)

        def forward(self, x):
            torch.empty(1 << 45, dtype=torch.uint8, device=x.device)
            return self.inner(x)

    with pytest.raises(RuntimeError, match="MEMORY"):
        accelerate(
            Greedy,
            adamw,
            [(torch.randn(4, 8), torch.randn(4, 1))],
            lambda output, batch: nn.functional.mse_loss(output, batch[1]),
            allow=["optimizer_impl"],
            progress=False,
        )
    assert float(torch.ones(8, device="cuda").sum()) == 8.0


def test_peak_of_bf16_is_above_fp32():
    device = torch.device("cuda")
    half = peak_flops_per_s(device, torch.bfloat16)
    assert half > peak_flops_per_s(device, torch.float32)
