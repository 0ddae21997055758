"""Optimizers of scripts for `horovod.torch` train as on the whole batch."""

import time

import pytest
import torch

import drivetrain_horovod.on_comm as hvd
from drivetrain_comm.backend import _native
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.skipif(
    _native.missing_because() is not None, reason=str(_native.missing_because())
)

NUM_STEPS, NUM_ROWS = 6, 8


@pytest.fixture(autouse=True)
def shut_down():
    yield
    hvd.shutdown()


def make_model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)]
    return torch.nn.Sequential(*layers).double()


def rows_of(step, first, num):
    generator = torch.Generator().manual_seed(step)
    x = torch.rand(NUM_ROWS, 5, generator=generator, dtype=torch.float64)
    return x[first : first + num]


def flat_state(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train_distributed(kind):
    model = make_model()
    if hvd.rank():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    options = {
        "passes": {"backward_passes_per_step": 2},
        "sum": {"op": hvd.Sum},
        "predivide": {"gradient_predivide_factor": 2.0},
        "groups": {"num_groups": 2},
        "fp16": {"compression": hvd.Compression.fp16},
    }.get(kind, {})
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), **options
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    assert isinstance(optimizer, torch.optim.SGD)
    share = NUM_ROWS // hvd.size()
    num_passes = 2 if kind == "passes" else 1
    part = share // num_passes
    for step in range(NUM_STEPS):

        def backward(step=step):
            optimizer.zero_grad()
            for at in range(num_passes):
                x = rows_of(step, hvd.rank() * share + at * part, part)
                loss = model(x).square().mean() / num_passes
                if kind == "sum":
                    loss = loss / hvd.size()
                loss.backward()
            return loss

        if kind == "closure":
            optimizer.step(backward)
        elif kind == "clip":
            backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            backward()
            optimizer.step()
        scheduler.step()
    return flat_state(model)


def train_alone(kind):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        model(rows_of(step, 0, NUM_ROWS)).square().mean().backward()
        if kind == "clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        scheduler.step()
    return flat_state(model)


KINDS = ["plain", "passes", "sum", "predivide", "groups", "fp16", "closure", "clip"]


def train_kinds():
    """Trains each kind in one world of processes, which take long to start."""
    hvd.init()
    states = {kind: train_distributed(kind) for kind in KINDS}
    hvd.barrier()
    hvd.shutdown()
    time.sleep(0.1)
    return states


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_distributed_optimizer_is_training_on_the_large_batch(world_size):
    found = run_ranks(train_kinds, world_size, process_group=False)
    for kind in KINDS:
        expected = train_alone(kind)
        most = 1e-2 if kind == "fp16" else 1e-10
        for states in found:
            assert torch.equal(states[kind], found[0][kind]), kind
            assert (states[kind] - expected).abs().max().item() < most, kind


def misuses():
    hvd.init()
    rank = hvd.rank()
    said = []

    def expect(call):
        try:
            call()
        except RuntimeError as error:
            said.append(str(error))
        else:
            said.append("")

    expect(lambda: hvd.allgather(torch.ones(2, 2 + rank)))
    expect(lambda: hvd.broadcast(torch.ones(2 + rank), 0))
    expect(
        lambda: hvd.broadcast(
            torch.ones(2, dtype=[torch.float16, torch.bfloat16][rank]), 0
        )
    )
    expect(lambda: hvd.alltoall(torch.ones(4), [2, 2 + rank]))
    expect(lambda: hvd.broadcast_parameters([torch.ones(2 + rank)]))
    model = torch.nn.Linear(2, 2 + rank)
    expect(lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters())))

    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    model(torch.ones(1, 2)).sum().backward()
    expect(optimizer.zero_grad)
    expect(lambda: model(torch.ones(1, 2)).sum().backward())
    optimizer.step()
    optimizer.zero_grad()
    table = torch.nn.Embedding(4, 2, sparse=True)
    sparse = torch.optim.SGD(table.parameters(), lr=1.0)
    dense = hvd.DistributedOptimizer(sparse, sparse_as_dense=True)
    before = table.weight.detach().clone()
    table(torch.tensor([rank])).sum().backward()
    dense.step()
    said.append((before - table.weight.detach())[:, 0].tolist())
    table = torch.nn.Embedding(4, 2, sparse=True)
    hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    expect(lambda: table(torch.tensor([rank])).sum().backward())
    # Last, since the group does not outlive it.
    expect(lambda: hvd.allreduce(torch.ones(2 + rank)))
    time.sleep(0.5)
    return said


def test_ranks_that_differ_all_get_an_error():
    found = run_ranks(misuses, 2, process_group=False)
    for said in found:
        assert "rank 1 has the shape [2, 3], rank 0 [2, 2]" in said[0]
        assert "broadcast needs one dtype and alike shapes" in said[1]
        assert "broadcast needs one dtype and alike shapes" in said[2]
        assert "those of rank 1 do not" in said[3]
        assert "ranks differ in the parameters to broadcast" in said[4]
        assert "ranks differ in the parameters of the optimizer" in said[5]
        assert "while gradients are being reduced" in said[6]
        assert "raise backward_passes_per_step" in said[7]
        assert said[8] == pytest.approx([0.5, 0.5, 0.0, 0.0])
        assert "sparse_as_dense=True" in said[9]
        assert "in which this rank has" in said[10]


def takes_branches():
    hvd.init()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2, 2, bias=False).double() for _ in range(3)]
    parameters = [layer.weight for layer in layers]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=1.0), num_groups=3
    )
    x = torch.ones(1, 2, dtype=torch.float64)
    # One rank uses the layers in the other order, and leaves one out.
    order = layers if hvd.rank() == 0 else layers[1::-1]
    for layer in order:
        layer(x).sum().backward()
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer.step()
    steps = [b - p.detach() for b, p in zip(before, parameters, strict=True)]
    hvd.barrier()
    hvd.shutdown()
    time.sleep(0.1)
    return [step[0, 0].item() for step in steps]


def test_ranks_may_take_other_branches():
    found = run_ranks(takes_branches, 2, process_group=False)
    assert found == [pytest.approx([1.0, 1.0, 0.5])] * 2
