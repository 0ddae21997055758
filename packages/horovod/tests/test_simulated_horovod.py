"""Horovod's functions on simulated accelerators, whose collectives are late."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from test_on_comm_optimizer import make_model, rows_of

from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_elastic._membership._connection import Connection
from drivetrain_elastic.testing import ScriptedWorlds, connect_store
from drivetrain_horovod import on_comm, on_elastic
from drivetrain_horovod.on_elastic import _runtime
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.simulated_accelerator

NUM_STEPS = 3


@pytest.fixture
def late(monkeypatch):
    """Ranks whose collectives take long."""
    monkeypatch.setenv(
        "SIMULATED_ACCELERATOR",
        "devices=4,op_delay_us=20,copy_delay_us=200,collective_delay_us=5000",
    )


def used(hvd):
    """Calls what takes tensors, and reads each result at once."""
    rank = hvd.rank()
    mine = torch.tensor([float(rank), 1.0], device="sim")
    told = torch.full((2,), float(rank), device="sim")
    hvd.broadcast_(told, 1)
    columns = torch.arange(6.0, device="sim").reshape(2, 3).t()
    return {
        "average": hvd.allreduce(mine).tolist(),
        "sum": hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0).tolist(),
        "half": hvd.allreduce(mine, compression=hvd.Compression.bf16).tolist(),
        "gather": hvd.allgather(torch.full((rank + 1, 2), rank).to("sim")).tolist(),
        "broadcast": told.tolist(),
        "strided": hvd.broadcast_(columns * rank, 1).tolist(),
    }


def trained(hvd, device):
    """Trains on a part of each batch, from values that only one rank has."""
    model = make_model().to(device)
    if hvd.rank():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        rows = rows_of(step, hvd.rank() * 4, 4).to(device)
        model(rows).square().mean().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        with optimizer.skip_synchronize():
            optimizer.step()
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def trained_alone():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        model(rows_of(step, 0, 8)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def over_comm():
    on_comm.init()
    found = used(on_comm), trained(on_comm, "sim")
    on_comm.barrier()
    on_comm.shutdown()
    return found


def over_elastic():
    store, number = connect_store(), int(os.environ["RANK"])
    if number == 0:
        store.set("seats/1", "w0 w1|")
    worlds = ScriptedWorlds(f"w{number}", connect_store)
    job = dist.PrefixStore("job", store)
    _runtime.begin(Connection(worlds, job, TorchProcessGroupFactory))
    found = used(on_elastic), trained(on_elastic, "sim")
    on_elastic.barrier()
    on_elastic.shutdown()
    return found


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("program", [over_comm, over_elastic])
def test_results_are_there_once_they_are_waited_for(program):
    for found, state in run_ranks(program, 2, process_group=False, timeout_s=120):
        assert found == {
            "average": [0.5, 1.0],
            "sum": [2.0, 4.0],
            "half": [0.5, 1.0],
            "gather": [[0, 0], [1, 1], [1, 1]],
            "broadcast": [1.0, 1.0],
            "strided": [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]],
        }
        torch.testing.assert_close(state, trained_alone(), rtol=1e-9, atol=1e-9)
