"""Scripts that know nothing of this package do what they do under stock Gloo."""

import os
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from drivetrain_comm.backend import _native
from drivetrain_testing import run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        _native.missing_because() is not None, reason=str(_native.missing_because())
    ),
]

MINUTE = timedelta(seconds=60)


def names():
    group = dist.new_group()
    plain = [dist.get_backend(), dist.get_backend(group)]
    config = dist.distributed_c10d.get_backend_config()
    dist.monitored_barrier()
    return [str(name) for name in plain], config


def begins_before_the_others_come():
    """Rank 0 begins, sends and waits; rank 1 receives first."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    several = [torch.ones(4) for _ in range(3)]
    if dist.get_rank() == 0:
        works = [dist.all_reduce(ones, group=group, async_op=True) for ones in several]
        seen = [work.is_completed() for work in works]
        dist.send(torch.ones(2), 1)
        for work in works:
            work.wait()
    else:
        dist.recv(torch.zeros(2), 0)
        seen = []
        for ones in several:
            dist.all_reduce(ones, group=group)
    return torch.stack(several).tolist(), seen


def waits_within_a_callback():
    """Each future's callback begins another all-reduce and waits for it."""

    def again(depth):
        ones = torch.ones(2)
        future = dist.all_reduce(ones, async_op=True).get_future()
        if depth == 0:
            return future
        return future.then(lambda done: again(depth - 1).wait()[0] + done.value()[0])

    return again(1).wait().tolist()


def threads_with_a_group_each():
    groups, done = [dist.new_group() for _ in range(4)], []

    def reduce_in(group):
        for _ in range(5):
            ones = torch.ones(100)
            dist.all_reduce(ones, group=group)
            assert ones[0] == 2
        done.append(group)

    order = groups if dist.get_rank() == 0 else groups[::-1]
    threads = [threading.Thread(target=reduce_in, args=(group,)) for group in order]
    for thread in threads:
        thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join()
    return len(done)


class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4, sparse=True)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.table(ids))


def sparse_gradients():
    torch.manual_seed(0)
    model = DistributedDataParallel(Embedded())
    for step in range(3):
        model.zero_grad()
        model(torch.tensor([dist.get_rank(), 2 + step])).square().sum().backward()
    table, head = model.module.table.weight.grad, model.module.head.weight.grad
    return table.to_dense().tolist(), head.tolist()


def hooks_that_come_later():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    grads, calls = [], []

    def hook(state, bucket):
        calls.append(bucket.index())
        return default_hooks.allreduce_hook(state, bucket)

    def own(model):
        model.register_comm_hook(None, hook)

    def builtin(model):
        kind = dist.BuiltinCommHookType.ALLREDUCE
        model._register_builtin_comm_hook(kind)

    for register in (own, builtin):
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        model(torch.ones(2, 4)).sum().backward()
        register(model)
        model.zero_grad()
        model(torch.full((2, 4), dist.get_rank() + 1.0)).sum().backward()
        grads.append(model.module.weight.grad.tolist())
    with pytest.raises(RuntimeError, match="only be called once"):
        model.register_comm_hook(None, hook)
    return grads, calls


def joins(static):
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    torch.nn.init.zeros_(model.module.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rank = dist.get_rank()
    with model.join(divide_by_initial_world_size=static):
        for _ in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(torch.full((1, 4), rank + 1.0)).sum().backward()
            optimizer.step()
    return model.module.weight.tolist()


def profile_of():
    from torch.profiler import ProfilerActivity, profile

    ones = torch.ones(1000)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(ones)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        dist.all_reduce(ones)
        dist.all_reduce(ones, async_op=True).wait()
        model(torch.ones(2, 4)).sum().backward()
    events = [e for e in found.events() if "reduce" in e.name.lower().replace("_", "")]
    return len({(e.name, e.time_range.start) for e in events}) >= 3


PARTS = {
    "names": names,
    "begins before the others come": begins_before_the_others_come,
    "waits within a callback": waits_within_a_callback,
    "threads": threads_with_a_group_each,
    "sparse gradients": sparse_gradients,
    "hooks that come later": hooks_that_come_later,
    "join, divided by all": lambda: joins(static=True),
    "join, divided by those left": lambda: joins(static=False),
    "profile": profile_of,
}


def all_parts(kind):
    import drivetrain_comm

    is_tuned = kind != "stock"
    if is_tuned:
        drivetrain_comm.enable()
    if kind == "no engine on rank 1" and os.environ["RANK"] == "1":
        _native._missing = "it was not built"
    dist.init_process_group("gloo", timeout=MINUTE)
    assert type(dist.group.WORLD).__name__ == (
        "TunedProcessGroup" if is_tuned else "ProcessGroup"
    )
    if is_tuned:
        assert bool(dist.group.WORLD.transport.lacks) == (kind != "tuned")
    found = {}
    for name, part in PARTS.items():
        print(name, flush=True)
        found[name] = part()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def found_by():
    return {
        kind: run_ranks(all_parts, 2, kind, process_group=False, timeout_s=80)
        for kind in ("stock", *KINDS)
    }


KINDS = ("tuned", "no engine on rank 1")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", PARTS)
def test_part_of_a_script_is_that_of_stock_gloo(part, kind, found_by):
    stock, ours = found_by["stock"], found_by[kind]
    assert [found[part] for found in ours] == [found[part] for found in stock]
    assert stock[0][part]


@pytest.mark.parametrize("backend", [None, "gloo", "cpu:gloo"])
def test_group_has_the_name_that_stock_gives_it(backend):
    import drivetrain_comm

    names = []
    for enable in (lambda: None, drivetrain_comm.enable):
        enable()
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        config = dist.distributed_c10d.get_backend_config()
        names.append([dist.get_backend(), dist.get_backend(dist.new_group()), config])
        dist.destroy_process_group()
    assert names[0] == names[1]


def meets_a_dead_rank():
    import drivetrain_comm

    drivetrain_comm.enable(algorithm="ring")
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    model = DistributedDataParallel(torch.nn.Linear(20, 1))
    for step in range(20):
        if dist.get_rank() == 1 and step == 10:
            return ""
        try:
            model(torch.ones(4, 20)).sum().backward()
        except RuntimeError as error:
            return str(error)
    return "nothing"


def test_error_of_a_backward_pass_names_the_rank_that_is_gone():
    said = run_ranks(meets_a_dead_rank, 2, process_group=False)[0]
    assert "DistributedError: rank 0: " in said
    assert "rank 1 is lost" in said
    assert "cast" not in said


def grows(num_vectors, size):
    import psutil

    import drivetrain_comm

    # On two hosts by name, so that they do not share memory.
    os.environ["DRIVETRAIN_COMM_HOST"] = f"host{dist_rank()}"
    drivetrain_comm.enable()
    dist.init_process_group("gloo", timeout=MINUTE)
    vectors = [torch.ones(size) for _ in range(num_vectors)]
    dist.all_reduce(torch.ones(size))
    grown = 0
    if dist.get_rank() == 1:
        before = psutil.Process().memory_info().rss
        time.sleep(3)
        grown = psutil.Process().memory_info().rss - before
    works = [dist.all_reduce(vector, async_op=True) for vector in vectors]
    for work in works:
        work.wait()
    assert all(vector[0] == vector[-1] == 2 for vector in vectors)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)
    return grown


def dist_rank():
    return os.environ["RANK"]


@pytest.mark.parametrize(("num_vectors", "size"), [(32, 1_000_000), (4000, 8_000)])
def test_late_rank_does_not_store_what_others_send_ahead(num_vectors, size):
    grown = run_ranks(grows, 2, num_vectors, size, process_group=False, timeout_s=120)
    assert grown[1] < 40 << 20
