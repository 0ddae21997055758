"""The functions of `horovod.torch`, on tuned groups, mean the same."""

import itertools
import os
import time

import pytest
import torch
import torch.distributed as dist

import drivetrain_horovod.on_comm as hvd
from drivetrain_comm.backend import _native
from drivetrain_core import DistributedError
from drivetrain_horovod.on_comm._state import place_of
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.skipif(
    _native.missing_because() is not None, reason=str(_native.missing_because())
)


@pytest.fixture(autouse=True)
def shut_down():
    yield
    hvd.shutdown()


def test_public_names_are_sorted_and_there():
    assert list(hvd.__all__) == sorted(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)


@pytest.mark.parametrize(
    ("rank", "hosts", "environment", "expected"),
    [
        (0, [[0]], {}, (0, 1, 0, 1)),
        (3, [[0, 1], [2, 3]], {}, (1, 2, 1, 2)),
        (1, [[0, 1], [2]], {}, (1, 2, 0, 1)),
        (3, [[0, 1, 2, 3]], {"LOCAL_RANK": "1"}, (1, 4, 0, 1)),
        (3, [[0, 1, 2, 3]], {"HOROVOD_CROSS_SIZE": "4"}, (3, 4, 0, 4)),
    ],
)
def test_place(rank, hosts, environment, expected):
    assert place_of(rank, hosts, environment) == expected


@pytest.mark.parametrize(
    "call",
    [
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        hvd.cross_size,
        hvd.barrier,
        lambda: hvd.allreduce(torch.ones(1)),
        lambda: hvd.allreduce_async_(torch.ones(1)),
        lambda: hvd.allgather(torch.ones(1)),
        lambda: hvd.broadcast(torch.ones(1), 0),
        lambda: hvd.alltoall(torch.ones(1)),
        lambda: hvd.broadcast_object(1),
        lambda: hvd.broadcast_parameters({}),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1)])),
    ],
    ids=itertools.count(),
)
def test_nothing_works_before_init(call):
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"call init\(\) first"):
        call()


def alone(call):
    hvd.init()
    hvd.init()
    assert hvd.is_initialized()
    with pytest.raises(DistributedError) as caught:
        call()
    return str(caught.value)


def make_optimizer(**options):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, hvd.DistributedOptimizer(optimizer, **options)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: hvd.allreduce(torch.ones(1), op="Mean"), "op must be one of"),
        (lambda: hvd.allreduce(torch.ones(1), op=7), "op must be one of"),
        (lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum), "Adasum"),
        (lambda: hvd.allreduce(torch.ones(1), True, op=hvd.Sum), "not both"),
        (lambda: hvd.allreduce(torch.ones(1), process_set=3), "process sets"),
        (lambda: hvd.ProcessSet([0]), "process sets"),
        (lambda: hvd.add_process_set([0]), "process sets"),
        (lambda: hvd.remove_process_set([0]), "process sets"),
        (lambda: hvd.broadcast(torch.ones(1), 1), "root_rank must be 0 to 0"),
        (lambda: hvd.broadcast_parameters(7), "state_dict"),
        (lambda: hvd.allgather(torch.tensor(1)), "got a scalar"),
        (lambda: hvd.allgather(torch.ones([1] * 13)), "12 dimensions at most, got 13"),
        (lambda: hvd.reducescatter(torch.tensor(1)), "got a scalar"),
        (lambda: hvd.alltoall(torch.ones(3), [2]), "add up"),
        (lambda: hvd.synchronize(-1), "no collective"),
        (lambda: hvd.poll(-1), "no collective"),
        (hvd.join, "join"),
        (lambda: make_optimizer(backward_passes_per_step=0), "1 or more"),
        (lambda: make_optimizer(groups=[[]]), "num_groups"),
        (lambda: make_optimizer(op=hvd.Adasum), "Adasum"),
        (
            lambda: make_optimizer(op=hvd.Sum, gradient_predivide_factor=2.0),
            "op=Average only",
        ),
        (lambda: make_optimizer(named_parameters=[torch.ones(1)]), "pairs"),
        (
            lambda: make_optimizer(
                named_parameters=[("a", torch.ones(1)), ("a", torch.ones(1))]
            ),
            "must differ",
        ),
        (lambda: make_optimizer(named_parameters=[]), "lacks 2 of the 2"),
        (lambda: hvd.DistributedOptimizer(make_optimizer()[1]), "already"),
    ],
    ids=itertools.count(),
)
def test_wrong_arguments_are_errors(call, says):
    assert says in alone(call)


def test_names_under_way_must_differ():
    hvd.init()
    handle = hvd.allreduce_async(torch.ones(2), name="x")
    with pytest.raises(DistributedError, match="'x' is still under way"):
        hvd.allreduce_async(torch.ones(2), name="x")
    assert hvd.synchronize(handle).tolist() == [1, 1]
    hvd.allreduce(torch.ones(2), name="x")


def test_init_takes_no_subsets(monkeypatch):
    with pytest.raises(DistributedError, match="must be None"):
        hvd.init(comm=[0])
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(DistributedError, match="MASTER_ADDR"):
        hvd.init()
    assert not hvd.is_initialized()


def every_function(default):
    """Checks each function on each rank; `default` says what torch's group is."""
    from drivetrain_comm import _enable

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if default == "tuned":
        _enable.enable()
        dist.init_process_group("gloo")
    elif default == "gloo":
        dist.init_process_group("gloo")
    elif default == "horovod":
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            os.environ["HOROVOD_" + name.replace("WORLD_", "")] = os.environ.pop(name)
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    assert (hvd.local_rank(), hvd.local_size()) == (rank, size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    total = size * (size - 1) / 2
    x = torch.full((3, 2), float(rank))

    assert torch.equal(hvd.allreduce(x), torch.full((3, 2), total / size))
    assert torch.equal(hvd.allreduce(x, average=False), torch.full((3, 2), total))
    assert torch.equal(hvd.allreduce(x, op=hvd.Min), torch.zeros(3, 2))
    assert torch.equal(hvd.allreduce(x, op=hvd.Max), torch.full((3, 2), size - 1.0))
    two = torch.full((1,), 2.0)
    assert hvd.allreduce(two, op=hvd.Product).item() == 2.0**size
    scaled = hvd.allreduce(two, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert scaled.item() == 3.0 * size
    assert hvd.allreduce(torch.tensor([rank])).item() == int(total // size)
    assert hvd.allreduce(torch.tensor(rank), op=hvd.Sum).item() == total
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        found = hvd.allreduce(torch.full((5,), 0.1), compression=compression)
        assert found.dtype == torch.float32
        assert torch.allclose(found, torch.full((5,), 0.1), rtol=2**-7)
    large = hvd.allreduce(torch.full((2,), 60000.0, dtype=torch.float16))
    assert torch.allclose(large, torch.full_like(large, 60000.0))
    across = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(hvd.allreduce(across, op=hvd.Sum), across * size)
    assert torch.equal(x, torch.full((3, 2), float(rank)))

    y = x.clone()
    assert hvd.allreduce_(y, op=hvd.Sum) is y
    assert y[0, 0].item() == total
    strided = torch.zeros(4, 2)
    hvd.allreduce_(strided[:, 1].fill_(1.0), op=hvd.Sum)
    assert strided.sum().item() == 4 * size
    handle = hvd.allreduce_async(x, op=hvd.Sum)
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.synchronize(handle)[0, 0].item() == total
    handle = hvd.allreduce_async_(y, op=hvd.Max)
    assert hvd.synchronize(handle) is y
    group = [torch.ones(2), torch.ones(3, dtype=torch.float64), torch.ones(1)]
    found = hvd.grouped_allreduce(group, op=hvd.Sum)
    assert [t.sum().item() for t in found] == [2 * size, 3 * size, size]
    hvd.grouped_allreduce_(group, op=hvd.Sum)
    assert group[1].tolist() == [size] * 3

    uneven = torch.full((rank + 1, 2), rank)
    found = hvd.allgather(uneven)
    assert found[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.allgather(torch.ones(rank)).shape == (total,)
    root = size - 1
    assert hvd.broadcast(x, root)[0, 0].item() == root
    assert x[0, 0].item() == rank
    y = x.clone()
    assert hvd.broadcast_(y, root_rank=root) is y
    assert y[0, 0].item() == root
    assert hvd.synchronize(hvd.broadcast_async(x, root))[0, 0].item() == root
    even = hvd.alltoall(torch.arange(size) + 10 * rank)
    assert even.tolist() == [10 * r + rank for r in range(size)]
    splits = list(range(1, size + 1))
    rows = torch.full((sum(splits), 2), rank)
    found, received = hvd.alltoall(rows, splits)
    assert received.tolist() == [rank + 1] * size
    assert found[:, 1].tolist() == [r for r in range(size) for _ in range(rank + 1)]
    mine = hvd.reducescatter(torch.arange(size + 1.0), op=hvd.Sum)
    expected = [0.0, size] if rank == 0 else [(rank + 1.0) * size]
    assert mine.tolist() == ([0.0, 1.0 * size] if rank == 0 else expected)
    hvd.barrier()

    leaf = torch.full((2,), 1.0 + rank, requires_grad=True)
    (hvd.allreduce(leaf, op=hvd.Sum) * (rank + 1)).sum().backward()
    assert leaf.grad.tolist() == [size * (size + 1) / 2] * 2

    assert hvd.broadcast_object({"rank": rank}, root) == {"rank": root}
    assert hvd.allgather_object("x" * rank) == ["x" * r for r in range(size)]
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    for params in (model.state_dict(), model.named_parameters(), model.parameters()):
        hvd.broadcast_parameters(params, root_rank=0)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert all(torch.equal(flat, one) for one in hvd.allgather_object(flat))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    if rank == root:
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root)
    assert optimizer.param_groups[0]["lr"] == 0.1 * (root + 1)
    moments = torch.cat([s["exp_avg"].flatten() for s in optimizer.state.values()])
    assert all(torch.equal(moments, one) for one in hvd.allgather_object(moments))
    assert next(iter(optimizer.state.values()))["step"].item() == 1

    hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert dist.is_initialized() == (default in ("tuned", "gloo"))
    if dist.is_initialized():
        dist.destroy_process_group()
    time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "default"),
    [(1, "none"), (2, "none"), (4, "none"), (2, "tuned"), (2, "gloo"), (2, "horovod")],
)
def test_every_function(world_size, default):
    run_ranks(every_function, world_size, default, process_group=False)


def test_setting_of_compression_is_used_or_refused(monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_COMM_COMPRESSION", "powersgd")
    hvd.init()
    with pytest.raises(DistributedError, match="use fp16 or bf16"):
        make_optimizer()
    hvd.shutdown()
    monkeypatch.setenv("DRIVETRAIN_COMM_COMPRESSION", "bf16")
    hvd.init()
    model, optimizer = make_optimizer()
    model(torch.full((1, 2), 0.1)).sum().backward()
    optimizer.step()
    assert model.weight.grad.tolist() == [[torch.tensor(0.1).bfloat16().item()] * 2] * 2
