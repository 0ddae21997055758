"""Meshes, pipelines and overlap on devices that work on their own, whose messages are late."""

from __future__ import annotations

import mesh_programs as programs
import pytest
import torch
from test_overlap_styles import Block, run, styles
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from drivetrain_core import destroy_process_group, init_process_group
from drivetrain_parallel.overlap import prefetch_first_unshard
from drivetrain_parallel.pipeline.costs import measure_costs
from drivetrain_parallel.pipeline.trace import trace_blocks
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.simulated_accelerator

CASES = [
    [("mesh", {"tensor": 2})],
    [("mesh", {"pipeline": 2})],
    [("mesh", {"pipeline": 2}), ("schedule", "interleaved_1f1b")],
    [("mesh", {"context": 2})],
    [("mesh", {"tensor": 2}), "sequence_parallel", "loss_parallel"],
]


@pytest.fixture
def late(monkeypatch):
    """Ranks whose copies and collectives take long."""
    monkeypatch.setenv(
        "SIMULATED_ACCELERATOR",
        "devices=4,op_delay_us=50,copy_delay_us=500,collective_delay_us=1000",
    )


def trained(cases):
    init_process_group()
    found = [programs.train(strategy) for strategy in cases]
    destroy_process_group()
    return found


@pytest.mark.usefixtures("late")
def test_every_axis_trains_there_as_one_process():
    torch.set_num_threads(1)
    expected = programs.train([], device="cpu")
    for rank in run_ranks(trained, 2, CASES, process_group=False, timeout_s=240):
        for (losses, norm), strategy in zip(rank, CASES, strict=True):
            assert losses == pytest.approx(expected[0], rel=1e-4), strategy
            assert norm == pytest.approx(expected[1], rel=1e-3), strategy


def sharded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), *(nn.Linear(64, 64) for _ in range(3)))
    model = model.to("sim")
    for block in model[1:]:
        fully_shard(block)
    return fully_shard(model, reshard_after_forward=False)


def given_up():
    """Gathers ahead, and gives up what is gathered while it is under way."""
    init_process_group()
    model = sharded()
    batches = [torch.ones(2, 64) * n for n in range(3)]
    loader = iter(prefetch_first_unshard(model, batches, num_blocks=2))
    before = [p.to_local().clone() for p in model.parameters()]
    next(loader)
    loader.close()
    # What comes next takes the memory into which was gathered.
    others = [torch.full((64, 64), 7.0, device="sim") for _ in range(16)]
    torch.sim.synchronize()
    assert all(bool((other == 7.0).all()) for other in others)
    after = [p.to_local() for p in model.parameters()]
    assert all(map(torch.equal, before, after))
    destroy_process_group()


@pytest.mark.usefixtures("late")
def test_gather_that_is_given_up_writes_into_no_memory_of_others():
    run_ranks(given_up, 2, process_group=False)


def overlapped(device):
    """Products that exchange what they need while they compute, and torch's own."""
    init_process_group()
    mesh, found = init_device_mesh(device, (2,)), []
    for path in (None, "direct", "ring"):
        torch.manual_seed(0)
        block = Block(16, 32, bias=True).double().to(device)
        options = {} if path is None else {"path": path, "num_chunks": 2}
        parallelize_module(block, mesh, styles(path is not None, 1, **options))
        torch.manual_seed(1)
        x = torch.randn(2, 8, 16, dtype=torch.float64).to(device).requires_grad_()
        output, grad, grads = run(block, x, 1)
        found.append([output.cpu(), grad.cpu(), *(g.cpu() for g in grads.values())])
    destroy_process_group()
    return found


@pytest.mark.usefixtures("late")
def test_products_use_what_has_arrived():
    for plain, *ours in run_ranks(overlapped, 2, "sim", process_group=False):
        for found in ours:
            torch.testing.assert_close(found, plain, rtol=1e-10, atol=1e-10)


def test_blocks_cost_what_the_device_takes_for_them():
    from drivetrain_simulated_accelerator import control

    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))).to("sim")
    batch = torch.ones(4, 8, device="sim")

    def loss_of(model, x):
        return model(x).square().mean()

    trace = trace_blocks(model, lambda m: loss_of(m, batch))
    with control.delays(op_us=5000):
        costs = measure_costs(model, trace, batch, loss_of)
    # An op forward and one backward at least.
    assert min(costs.blocks) >= 0.01
