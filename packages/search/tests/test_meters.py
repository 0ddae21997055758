"""Meters: known amounts are read as such."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import nn

from drivetrain_core._data.cycle import cycle
from drivetrain_search.process import meters

CPU = torch.device("cpu")
MIB = 1 << 20


def linear(built, rows=8, **fields):
    data = [(torch.randn(rows, 3), torch.randn(rows, 4))]
    return built(
        model=lambda: nn.Linear(3, 4),
        data=data,
        loss=lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        **fields,
    )


def test_flops_of_a_linear_are_those_of_two_products(built):
    accelerated = linear(built)
    batch = next(iter(accelerated.loader))
    # x W^T, and the gradient of W; nothing asks for the gradient of x.
    assert meters.count_flops(accelerated, batch) == 2 * (2 * 8 * 3 * 4)
    assert all(p.grad is None for p in accelerated.module.parameters())


def test_flops_of_micro_batches_are_those_of_the_whole(built):
    whole, halves = linear(built), linear(built, strategy=[("micro_batch", 2)])
    batch = next(iter(whole.loader))
    assert meters.count_flops(halves, batch) == meters.count_flops(whole, batch)


def test_flops_of_a_model_that_fails_are_unknown(built):
    accelerated = linear(built)
    accelerated.train_step._loss = None
    assert meters.count_flops(accelerated, next(iter(accelerated.loader))) is None


def test_flops_of_a_model_without_products_are_unknown(built):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (x * self.weight).sum(1)

    accelerated = built(
        model=Scale, data=[(torch.ones(8, 3), 0)], loss=lambda out, _: out.mean()
    )
    assert meters.count_flops(accelerated, next(iter(accelerated.loader))) is None


def test_peak_memory_rises_by_what_was_allocated_and_is_reset():
    meters.reset_peak_memory(CPU)
    before = meters.peak_memory_bytes(CPU)
    block = torch.ones(200 * MIB, dtype=torch.uint8)
    assert int(block[-1]) == 1
    risen = meters.peak_memory_bytes(CPU)
    assert 190 * MIB <= risen - before <= 300 * MIB
    del block
    # The kernel counts resident pages with a slack of some hundred KiB.
    assert meters.peak_memory_bytes(CPU) >= risen - 4 * MIB
    meters.reset_peak_memory(CPU)
    assert meters.peak_memory_bytes(CPU) <= risen - 150 * MIB


def test_measured_steps_have_times_shares_and_amounts(built):
    accelerated = linear(built)
    measured = meters.measure_steps(
        accelerated, iter(cycle(accelerated.loader)), min_steps=5, min_seconds=0.0
    )
    assert len(measured.step_times_s) == 5
    assert all(time > 0 for time in measured.step_times_s)
    assert 0 <= measured.data_share <= 1
    assert 0 < measured.optimizer_share < 1
    assert measured.data_share + measured.optimizer_share < 1
    assert measured.peak_memory_bytes > 10 * MIB
    assert measured.samples_per_step == accelerated.context.batch.size


@pytest.fixture
def clock(monkeypatch):
    """A clock that ticks one second at each look."""
    ticks = count()
    monkeypatch.setattr(meters.time, "perf_counter", lambda: float(next(ticks)))


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ({"min_steps": 2, "min_seconds": 0.0}, 2),
        ({"min_steps": 2, "min_seconds": 9.5}, 4),
        ({"min_steps": 2, "min_seconds": 99.0, "max_steps": 3}, 3),
        ({"min_steps": 7, "min_seconds": 0.0, "max_steps": 3}, 3),
    ],
)
def test_measured_steps_keep_their_limits(built, clock, limits, steps):
    accelerated = linear(built)
    measured = meters.measure_steps(
        accelerated, iter(cycle(accelerated.loader)), **limits
    )
    # Each step looks at its start, and after data, gradients, and optimizer.
    assert measured.step_times_s == (3.0,) * steps
    assert measured.data_share == pytest.approx(1 / 3)
    assert measured.optimizer_share == pytest.approx(1 / 3)


def test_measured_steps_leave_out_what_workers_had_prepared(built, clock):
    class Prepared(list):
        """A loader with workers, by its looks."""

        num_workers, prefetch_factor = 2, 3

    accelerated = linear(built)
    loader = Prepared(accelerated.loader)
    accelerated.loader = loader
    taken = count()
    batches = (batch for batch in cycle(loader) if next(taken) >= 0)
    measured = meters.measure_steps(accelerated, batches, min_steps=4, min_seconds=0.0)
    assert measured.step_times_s == (3.0,) * 4
    assert next(taken) == 2 * 3 + 4


def test_measured_steps_train(built):
    accelerated = linear(built)
    before = [p.detach().clone() for p in accelerated.module.parameters()]
    meters.measure_steps(
        accelerated, iter(cycle(accelerated.loader)), min_steps=1, min_seconds=0.0
    )
    after = list(accelerated.module.parameters())
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_peak_rate_counts_two_operations_a_product(clock, dtype):
    assert meters.peak_flops_per_s(CPU, dtype, size=8) == 2 * 8**3


@pytest.mark.parametrize(("seconds", "products"), [(0.01, 3 + 10), (2.0, 1 + 1)])
def test_peak_rate_of_a_slow_format_takes_few_products(monkeypatch, seconds, products):
    calls = count()
    monkeypatch.setattr(
        "drivetrain_search.process.meters.time.perf_counter",
        lambda: next(calls) * seconds,
    )
    rate = meters.peak_flops_per_s(CPU, torch.float32, size=8)
    monkeypatch.undo()
    assert rate == pytest.approx(2 * 8**3 / seconds)
    assert next(calls) == 2 * products
