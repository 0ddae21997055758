"""A tuned group is a process group like any other, for all that torch does with one."""

import os

import pytest
import torch
import torch.distributed as dist

from drivetrain_comm.backend._process_group import (
    TunedProcessGroup,
    TunedProcessGroupFactory,
)
from drivetrain_core.services import get_service, service_factory
from drivetrain_testing import check_process_group_factory, run_ranks


def tuned():
    from drivetrain_comm.backend._process_group import TunedProcessGroupFactory

    return TunedProcessGroupFactory("gloo")


@pytest.mark.slow
def test_contract():
    check_process_group_factory(tuned, world_sizes=(1, 2))


def test_service_of_core_is_this_one():
    assert "drivetrain-comm" in service_factory("process_group").provider
    assert isinstance(get_service("process_group"), TunedProcessGroupFactory)


def everything(algorithm):
    import warnings

    from drivetrain_comm import _enable

    warnings.simplefilter("ignore")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["DRIVETRAIN_COMM_HOST"] = str(rank // 2)
    if algorithm:
        _enable.enable(algorithm=algorithm)
    else:
        _enable.enable()
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    assert isinstance(group, TunedProcessGroup)
    found = {}

    x = torch.arange(5.0) + rank
    dist.all_reduce(x)
    found["all_reduce"] = x.tolist()
    x = torch.tensor([1 + 2j, rank])
    dist.all_reduce(x)
    found["complex"] = x.tolist()
    x = torch.full((3,), rank, dtype=torch.bool)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    found["bool"] = x.tolist()
    x = torch.full((4,), float(rank))
    dist.all_reduce(x, op=dist.ReduceOp.AVG) if algorithm else None
    found["avg"] = x.tolist() if algorithm else None
    work = dist.all_reduce(torch.ones(2), async_op=True)
    found["async"] = [work.wait(), work.is_completed(), work.is_success()]
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    found["future"] = future.wait()[0].tolist()
    pair = [torch.ones(2), torch.ones(3)]
    dist.all_reduce_coalesced(pair)
    found["coalesced"] = [t.tolist() for t in pair]
    out = torch.empty(size)
    dist.all_gather_into_tensor(out, torch.tensor([float(rank)]))
    found["all_gather"] = out.tolist()
    out = torch.empty(1)
    dist.reduce_scatter_tensor(out, torch.arange(float(size)))
    found["reduce_scatter"] = out.item() / (rank or 1)
    x = torch.tensor([float(rank)])
    dist.broadcast(x, 1)
    found["broadcast"] = x.item()
    names = [None] * size
    dist.all_gather_object(names, f"rank {rank}")
    found["objects"] = names
    if rank == 0:
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        x = torch.zeros(1)
        dist.recv(x, 0)
        assert x.item() == 1
    dist.barrier()

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    assert isinstance(mine, TunedProcessGroup)
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=mine)
    found["subgroup"] = x.item() - 4 * (rank // 2)
    found["backend"] = dist.get_backend()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("algorithm", [None, "ring", "hierarchical-direct"])
def test_all_collectives_work(algorithm):
    found = run_ranks(everything, 4, algorithm, process_group=False, timeout_s=90)
    for one in found:
        first = {**one, "reduce_scatter": None}
        assert first == {**found[0], "reduce_scatter": None}
    assert [one["reduce_scatter"] for one in found] == [0, 4, 4, 4]
    assert found[0]["all_reduce"] == [6, 10, 14, 18, 22]
    assert found[0]["complex"] == [4 + 8j, 6]
    assert found[0]["bool"] == [True] * 3
    assert found[0]["avg"] == ([1.5] * 4 if algorithm else None)
    assert found[0]["async"] == [True] * 3
    assert found[0]["future"] == [4, 4]
    assert found[0]["coalesced"] == [[4, 4], [4, 4, 4]]
    assert found[0]["objects"] == [f"rank {rank}" for rank in range(4)]
    assert found[0]["subgroup"] == 1
    assert found[0]["backend"] == "gloo"


def parallel():
    import warnings

    from torch.distributed._functional_collectives import all_reduce
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from drivetrain_comm import _enable

    warnings.simplefilter("ignore")
    _enable.enable()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    kinds = {type(mesh.get_group(name)) for name in ("dp", "tp")}
    assert kinds == {TunedProcessGroup}
    whole = torch.arange(24.0).reshape(4, 6)
    sharded = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    again = sharded.redistribute(mesh, [Replicate(), Replicate()]).to_local()
    assert torch.equal(again, whole)
    summed = all_reduce(torch.ones(3), "sum", mesh.get_group("tp"))
    assert torch.equal(torch.as_tensor(summed), torch.full((3,), 2.0))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        loss = model(whole / 24).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses


def test_dtensor_and_fsdp2_work():
    found = run_ranks(parallel, 4, process_group=False, timeout_s=90)
    assert all(losses == found[0] for losses in found)
    assert found[0][-1] < found[0][0]


def leaves_in_the_middle(how):
    import time

    from drivetrain_comm import _enable

    _enable.enable(algorithm="ring")
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        time.sleep(0.5)
        if how == "abort":
            dist.group.WORLD.abort()
            time.sleep(1)
            return "gone"
        # The others are given the time to say what they saw.
        dist.group.WORLD.shutdown()
        time.sleep(3)
        return "gone"
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1 << 16))
    except RuntimeError as error:
        return str(error), time.monotonic() - start
    return "no error"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says"), [("abort", "was aborted"), ("shutdown", "rank 1 is lost")]
)
def test_rank_that_leaves_ends_the_others_collectives(how, says):
    found = run_ranks(leaves_in_the_middle, 3, how, process_group=False)
    for rank in (0, 2):
        message, seconds = found[rank]
        assert says in message
        assert seconds < 20


def test_enable_after_the_group_was_made_says_so(caplog):
    import drivetrain_comm

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    drivetrain_comm.enable()
    assert not isinstance(dist.group.WORLD, TunedProcessGroup)
    dist.destroy_process_group()
    assert [r.getMessage() for r in caplog.records if "came after" in r.getMessage()]


def test_stand_in_of_torch_that_sends_nothing_is_left_alone():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import drivetrain_comm

    drivetrain_comm.enable()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        assert not isinstance(dist.group.WORLD, TunedProcessGroup)
        assert dist.get_world_size() == 4
    finally:
        dist.destroy_process_group()


def strided():
    from drivetrain_comm import _enable

    _enable.enable()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # The ranks meet in the first one.
    dist.all_reduce(torch.ones(1))
    x = torch.arange(6.0).view(2, 3).t()
    # Nobody waits within a collective that was asked not to.
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.empty(1), 0)
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    found = [x.flatten().tolist()]
    y = torch.ones(2, 2).t()[:, :1]
    future = dist.all_reduce(y, async_op=True).get_future()
    found.append(future.wait()[0].flatten().tolist())
    parameter = torch.nn.Parameter(torch.ones(3, 2).t())
    dist.all_reduce(parameter)
    halves = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    dist.all_reduce(halves, op=dist.ReduceOp.AVG)
    with torch.inference_mode():
        inferred = torch.ones(3, 2).t()
    dist.all_reduce(inferred)
    found.append([parameter.sum().item(), halves.sum().item(), inferred.sum().item()])
    forgotten = torch.ones(3, 2).t()
    dist.all_reduce(forgotten, async_op=True)
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    found.append(forgotten.sum().item())
    dist.destroy_process_group()
    return found


def test_tensors_whose_elements_lie_apart():
    for found in run_ranks(strided, 2, process_group=False):
        assert found == [[0, 6, 2, 8, 4, 10], [2, 2], [12, 2, 12], 12]


def waits_in_a_forked_child():
    from drivetrain_comm import _enable

    _enable.enable(algorithm="direct")
    dist.init_process_group("gloo")
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    child = os.fork()
    if child == 0:
        for ask in (work.wait, work.get_future):
            try:
                ask()
            except RuntimeError as error:
                if "before a fork" in str(error):
                    continue
            os._exit(5)
        os._exit(3)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    work.wait()
    return status, tensor.tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_work_that_was_begun_before_a_fork_is_refused_in_the_child():
    assert (
        run_ranks(waits_in_a_forked_child, 2, process_group=False)
        == [(3, [2.0] * 4)] * 2
    )
