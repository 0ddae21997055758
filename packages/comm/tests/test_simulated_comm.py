"""Tuned process groups over simulated accelerators, whose collectives are late."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from drivetrain_comm import TunedProcessGroup, _enable
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.simulated_accelerator

NUM_STEPS = 4


def make_model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16) for _ in range(4)]
    return torch.nn.Sequential(*layers).double()


def part(step, rank, device):
    generator = torch.Generator().manual_seed(10 * step + rank)
    x = torch.rand(8, 16, generator=generator, dtype=torch.float64)
    return x.to(device)


def trained(backend):
    _enable.enable()
    dist.init_process_group(backend)
    assert isinstance(dist.group.WORLD, TunedProcessGroup)
    rank = dist.get_rank()
    torch.accelerator.set_device_index(rank)
    ddp = DistributedDataParallel(make_model().to("sim"))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        ddp(part(step, rank, "sim")).square().mean().backward()
        optimizer.step()
    total = torch.full((4,), rank + 1.0, device="sim")
    dist.all_reduce(total)
    gathered = [torch.zeros(2, device="sim") for _ in range(2)]
    dist.all_gather(gathered, torch.full((2,), float(rank), device="sim"))
    told = [total.tolist(), *(one.tolist() for one in gathered)]
    state = torch.cat([p.detach().cpu().flatten() for p in ddp.parameters()])
    dist.barrier()
    dist.destroy_process_group()
    return told, state


def trained_alone():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        batch = torch.cat([part(step, rank, "cpu") for rank in range(2)])
        model(batch).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("backend", [None, "cpu:gloo,sim:simccl"])
def test_tuned_groups_carry_what_lies_on_devices(monkeypatch, backend):
    monkeypatch.setenv(
        "SIMULATED_ACCELERATOR", "devices=2,op_delay_us=20,collective_delay_us=5000"
    )
    for told, state in run_ranks(trained, 2, backend, process_group=False):
        assert told == [[3.0] * 4, [0.0] * 2, [1.0] * 2]
        torch.testing.assert_close(state, trained_alone(), rtol=1e-9, atol=1e-9)
