"""Rows of torch's test_c10d_common and test_c10d_gloo that make their default group."""

import logging
import tempfile
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch_rows import RowsOf, error_of, init_group, stores

row = RowsOf("test_c10d_common.py")
spread = RowsOf("distributed_test.py")
gloo = RowsOf("test_c10d_gloo.py")
# A world of one, as each of these tests of torch's has.
ONE = {"rank": 0, "world_size": 1}


@gloo("RendezvousEnvTest.test_logging_init", "handlers stay", alone=True)
def _():
    before = list(logging.root.handlers)
    init_group(dist.HashStore(), **ONE)
    return before == logging.root.handlers


@gloo("TimeoutTest.test_default_store_timeout_gloo", "of the store", alone=True)
def _():
    found = []
    with tempfile.NamedTemporaryFile() as file:

        def wait():
            url = f"file://{file.name}"
            limit = timedelta(seconds=1)
            dist.init_process_group("gloo", init_method=url, timeout=limit, **ONE)
            store = distributed_c10d._get_default_store()
            found.append(error_of(store.get, "no such key").kinds)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(10)
        return found


def alone_with(backend):
    init_group(dist.HashStore(), backend, **ONE)
    group, tensor = dist.group.WORLD, torch.ones(2)
    dist.all_reduce(tensor)
    config = distributed_c10d.get_backend_config()
    # With several devices torch calls the group "undefined", and we by its backend.
    name = group.name() if backend == "gloo" else ""
    return group.rank(), group.size(), name, str(dist.get_backend()), config, tensor


for _test, _backend in (
    ("test_init_process_group_optional_backend", None),
    ("test_init_process_group_for_all_backends", "gloo"),
    ("test_init_process_group_with_multiple_backends", "cpu:gloo,cuda:gloo"),
):
    row.add(
        _test,
        f"backend {_backend}",
        lambda backend=_backend: alone_with(backend),
        alone=True,
    )


@row("test_default_process_group", "without a backend's name", alone=True)
def _():
    dist.init_process_group(store=dist.HashStore(), **ONE)
    return str(dist.get_backend())


@gloo("Dispatched.test_collectives", "each with one rank", alone=True)
def _():
    init_group(dist.HashStore(), **ONE)
    tensor, found = torch.full((2, 2), 3.0), []
    calls = [
        lambda: dist.reduce(tensor, 0),
        lambda: dist.broadcast(tensor, 0),
        lambda: dist.all_reduce(tensor),
        lambda: dist.all_gather([tensor], tensor),
        lambda: dist.gather(tensor, [tensor]),
        lambda: dist.scatter(tensor, [tensor]),
        dist.barrier,
        lambda: dist.all_reduce(tensor, dist.ReduceOp.AVG),
        lambda: dist.reduce_scatter(tensor, [tensor]),
        lambda: dist.all_to_all([tensor], [tensor]),
    ]
    for call in calls:
        found.append([error_of(call), tensor.clone()])
    return found


@gloo("Dispatched.test_allreduce_coalesced", "one rank", alone=True)
def _():
    init_group(dist.HashStore(), **ONE)
    tensors = [torch.ones(10, 10)]
    dist.all_reduce_coalesced(tensors, dist.ReduceOp.SUM)
    return tensors


@gloo("Dispatched.test_all_to_all_single", "a tensor in parts", alone=True)
def _():
    init_group(dist.HashStore(), **ONE)
    given, taken = torch.ones(2, 2), torch.zeros(2, 2)
    dist.all_to_all_single(taken, given)
    return taken, error_of(dist.all_to_all_single, taken, given.t())


@gloo("Dispatched.test_allgather_coalesced", "one rank", alone=True)
def _():
    init_group(dist.HashStore(), **ONE)
    places = [torch.zeros(10, 10)]
    dist.all_gather_coalesced([places], [torch.ones(10, 10)])
    return places


@gloo("Dispatched.test_monitored_barrier", "one rank", alone=True)
def _():
    init_group(dist.HashStore(), **ONE)
    return dist.monitored_barrier()


@spread("test_barrier_timeout_global", "a rank does not come", alone=True)
def _():
    init_group(stores[-1], timeout=timedelta(seconds=10))
    distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    if dist.get_rank() == 2:
        return None
    return "RuntimeError" in error_of(dist.barrier).kinds


@spread(
    "test_monitored_barrier_gloo_rank_0_timeout", "rank 0 does not come", alone=True
)
def _():
    init_group(stores[-1], timeout=timedelta(seconds=3))
    limit = timedelta(seconds=0.5)
    if dist.get_rank() == 0:
        return None
    return "RuntimeError" in error_of(dist.monitored_barrier, None, limit).kinds


@spread("test_dump_DDP_relevant_env_vars", "what is printed", alone=True)
def _():
    from contextlib import redirect_stdout
    from io import StringIO

    from torch.nn.parallel.distributed import _dump_DDP_relevant_env_vars

    with redirect_stdout(StringIO()) as out:
        _dump_DDP_relevant_env_vars()
    lines = out.getvalue().splitlines()
    # Ports differ from run to run.
    return [line for line in lines if "PORT" not in line and "RANK" not in line]


@row("PythonProcessGroupExtensionTest.test_get_backend_name", "a class", alone=True)
def _():
    init_group(stores[-1])
    group = dist.group.WORLD
    return group.name(), isinstance(group, dist.ProcessGroup)


@row("test_backend_config", "forms of a backend's name", alone=True)
def _():
    names = ["gloo", "GLOO", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo"]
    wrong = ["cpu:gloo,cuda:nccl,", "cpu:gloo,cpu:gloo"]
    return [str(dist.BackendConfig(n)) for n in names], [
        error_of(dist.BackendConfig, n).kinds for n in wrong
    ]


@row("test_is_backend_available", "names that are there", alone=True)
def _():
    return [dist.is_backend_available(name) for name in ("gloo", "nosuch", "fake")]


class Dummy(dist.ProcessGroup):
    """A user's own group, which marks what it is given."""

    has_ended = ""

    def allreduce(self, tensors, opts=None):
        for tensor in tensors:
            tensor.add_(2)
        future = torch.futures.Future()
        future.set_result(tensors)
        return torch._C._distributed_c10d._create_work_from_future(future)

    def getBackendName(self):  # noqa: N802 (torch's name)
        return "Dummy"

    def abort(self):
        self.has_ended = "abort"

    def shutdown(self):
        self.has_ended = "shutdown"


def of_a_user(end):
    """What a backend of the user's does, which is left as it is."""
    if not hasattr(dist.Backend, "DUMMY"):
        dist.Backend.register_backend(
            "dummy",
            lambda store, rank, size, timeout: Dummy(rank, size),
            devices=["cpu"],
        )
    init_group(stores[-1], "dummy")
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    group = dist.group.WORLD
    end()
    return tensor, type(group).__name__, group.has_ended


for _test, _end in (
    ("test_collectives", lambda: None),
    ("test_shutdown", dist.destroy_process_group),
    ("test_abort", distributed_c10d._abort_process_group),
):
    row.add(
        f"PythonProcessGroupExtensionTest.{_test}",
        "a backend of the user's",
        lambda end=_end: of_a_user(end),
        alone=True,
    )


@row("abort of a group", "the others get an error", alone=True)
def _():
    init_group(stores[-1])
    dist.all_reduce(torch.ones(2))
    distributed_c10d._abort_process_group()
    return dist.is_initialized()


@row("init_process_group twice", "an error, then again", alone=True)
def _():
    init_group(dist.PrefixStore("a", stores[-1]))
    error = error_of(init_group, dist.PrefixStore("b", stores[-1]))
    dist.destroy_process_group()
    init_group(dist.PrefixStore("c", stores[-1]))
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    return error, tensor


@row("split_group", "a part of a group", alone=True)
def _():
    init_group(stores[-1])
    error = error_of(dist.split_group, split_ranks=[[0, 1], [2]])
    return error if isinstance(error, str) else error.kinds


@row("a call without a group", "what it says", alone=True)
def _():
    calls = (dist.get_rank, dist.get_world_size, dist.barrier)
    return [error_of(call) for call in calls], error_of(dist.all_reduce, torch.ones(1))
