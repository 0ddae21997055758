"""Meters on the simulated accelerator: what they tell is of work that is done."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from drivetrain_core import accelerate
from drivetrain_core.accelerators import accelerator_of
from drivetrain_search.prediction.probes import measure_rates
from drivetrain_search.process import meters
from drivetrain_testing.programs import Blocks, loader, mse, sgd

pytestmark = pytest.mark.simulated_accelerator

OP_US = 2000
OP_S = OP_US / 1e6


def measured():
    from drivetrain_simulated_accelerator import control

    accelerated = accelerate(
        Blocks, sgd, loader("list"), mse, strategy=[], progress=False
    )
    batches = itertools.cycle(accelerated.loader)
    for _ in range(2):
        accelerated.train_step(next(batches))
    step = accelerated.train_step
    with control.delays(op_us=OP_US):
        counts = [control.counters()["asynchronous_ops"]]
        batch = next(batches)
        step.accumulate(batch)
        step.second_pass(batch)
        counts.append(control.counters()["asynchronous_ops"])
        step.optimizer_step()
        torch.sim.synchronize()
        counts.append(control.counters()["asynchronous_ops"])
        found = meters.measure_steps(accelerated, batches, min_steps=3, min_seconds=0.0)
        torch.sim.synchronize()
    accelerated.close()
    return found, counts[1] - counts[0], counts[2] - counts[1]


def check(found, num_passes, num_optimizer):
    """Each operation of the device takes as long as any other."""
    assert num_passes > 10
    assert num_optimizer > 1
    num = num_passes + num_optimizer
    assert min(found.step_times_s) > 0.5 * num * OP_S
    share = num_optimizer / num
    assert 0.5 * share < found.optimizer_share < 2 * share
    assert found.peak_memory_bytes > 0


def test_step_takes_as_long_as_its_work():
    check(*measured())


def test_step_takes_as_long_as_its_work_where_events_tell_no_time():
    code = "import test_simulated_search as t; t.check(*t.measured())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SIMULATED_ACCELERATOR": "event_timing=no"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_rates_are_those_of_work_that_is_done():
    from drivetrain_simulated_accelerator import control

    measure_rates(torch.device("sim"), slice_s=0.01)
    with control.delays(op_us=OP_US):
        rates = measure_rates(torch.device("sim"), slice_s=0.05)
    assert rates.overhead_s > 0.5 * OP_S
    assert set(rates.flops_per_s) == {"float32", "bfloat16"}


def test_flops_of_the_device_wait_for_its_products():
    from drivetrain_simulated_accelerator import control

    device, dtype = torch.device("sim"), torch.float32
    meters.peak_flops_per_s(device, dtype, size=64)
    with control.delays(op_us=OP_US):
        found = meters.peak_flops_per_s(device, dtype, size=64)
    assert found <= 1.1 * 2 * 64**3 / OP_S


def test_rate_is_measured_within_what_is_free(monkeypatch):
    accelerator = accelerator_of("sim")
    monkeypatch.setattr(accelerator, "memory", lambda index=0: (4 << 20, 1 << 30))
    device = torch.device("sim", 0)
    torch.sim.synchronize()
    before = torch.sim.memory_allocated()
    meters.reset_peak_memory(device)
    assert meters.peak_flops_per_s(device, torch.float32) > 0
    assert meters.peak_memory_bytes(device) - before <= 4 << 20
