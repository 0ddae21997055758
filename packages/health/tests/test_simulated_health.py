"""A node with simulated accelerators is measured, and computes the same bits each time."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import HashStore

from drivetrain_core import init_process_group
from drivetrain_health.checks import (
    _collectives,
    _gpu_all_to_all,
    _gpu_compute,
    _gpu_copy,
    probe_bits,
)
from drivetrain_health.checks._gpu_exchange import measure as exchange
from drivetrain_health.checks._task import CheckFailedError, Task
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.simulated_accelerator


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(_gpu_compute, "_SIZE", 64)
    monkeypatch.setattr(_gpu_copy, "_NUM_BYTES", 1 << 20)
    monkeypatch.setattr(_gpu_all_to_all, "_NUM_WORDS", 1 << 12)


def task():
    return Task(0.05, 60.0, 1, None, None, 0, 1, lambda _: None, HashStore())


@pytest.mark.usefixtures("small")
def test_devices_are_measured():
    for check in (_gpu_compute, _gpu_copy, _gpu_all_to_all):
        found = check.measure(task())
        assert found.measures
        assert all(rate > 0 for rate in found.measures.values())


@pytest.mark.usefixtures("small")
def test_copy_is_looked_at_once_it_has_arrived():
    from drivetrain_simulated_accelerator import control

    # Of memory that is not written yet the check would say that it is wrong.
    with control.delays(copy_us=5000):
        assert _gpu_copy.measure(task()).measures
        assert _gpu_all_to_all.measure(task()).measures


@pytest.mark.usefixtures("small")
def test_rate_is_that_of_work_that_is_done():
    from drivetrain_simulated_accelerator import control

    with control.delays(op_us=2000):
        rates = _gpu_compute.measure(task()).measures
    # A product takes two milliseconds at least, however fast it is queued.
    most = 2 * 64**3 / 2e-3 / 1e12
    assert all(rate <= 1.1 * most for rate in rates.values())


def test_device_computes_the_same_bits_each_time():
    first, second = probe_bits("sim:0", repeats=3), probe_bits("sim:0")
    assert not first.differs
    assert first.digest == second.digest
    assert "simulated accelerator" in first.build


def test_devices_exchange_with_themselves():
    found = exchange(task())
    assert found.received
    assert set(found.measures) == {
        "network_gpu_all_gather_gb_per_s",
        "network_gpu_all_reduce_gb_per_s",
        "network_gpu_reduce_scatter_gb_per_s",
    }


def rates_of_late_collectives():
    group = init_process_group()
    device = torch.device("sim", group.rank())
    _collectives._NUM_WORDS = 1 << 10
    found = _collectives.exchange(
        group,
        device,
        prefix="late",
        synchronize=lambda: torch.accelerator.synchronize(device),
    )
    return found.measures


def test_rate_of_collectives_is_that_of_those_that_have_ended(monkeypatch):
    monkeypatch.setenv("SIMULATED_ACCELERATOR", "devices=2,collective_delay_us=20000")
    most = 8 * (1 << 10) / 20e-3 / 1e9
    for rates in run_ranks(rates_of_late_collectives, 2, process_group=False):
        assert len(rates) == 3
        assert all(0 < rate <= most for rate in rates.values())


def test_lost_device_is_named():
    from drivetrain_simulated_accelerator import control

    control.lose(1)
    try:
        with pytest.raises((CheckFailedError, torch.AcceleratorError), match="lost"):
            _gpu_all_to_all.measure(task())
    finally:
        control.restore(1)
