"""Process groups: the contract, the environment, and the default group."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from drivetrain_core._errors import DistributedError
from drivetrain_core.services import (
    TorchProcessGroupFactory,
    _torch_process_group,
    destroy_process_group,
    init_process_group,
)
from drivetrain_testing import check_process_group_factory, run_ranks

PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No launcher's environment before, no process group after."""
    for name in (*PLACE, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield
    destroy_process_group()


@pytest.mark.slow
def test_fallback_keeps_the_contract():
    check_process_group_factory(TorchProcessGroupFactory)


def test_without_a_launcher_the_world_is_this_process():
    group = init_process_group()
    assert (group.rank(), group.size()) == (0, 1)
    assert group is dist.group.WORLD
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1, 1]


def test_the_group_that_stands_is_returned():
    assert init_process_group() is init_process_group()


def test_destroying_twice_is_fine():
    init_process_group()
    destroy_process_group()
    destroy_process_group()
    assert not dist.is_initialized()
    assert init_process_group().size() == 1


@pytest.mark.parametrize("missing", PLACE[:4])
def test_partial_environment_names_what_is_missing(monkeypatch, missing):
    for name in PLACE[:4]:
        if name != missing:
            monkeypatch.setenv(name, "1")
    with pytest.raises(DistributedError, match=f"but not {missing}. Start .*torchrun"):
        init_process_group()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "two"}, "RANK must be an integer, got 'two'"),
        ({"WORLD_SIZE": "1.5"}, "WORLD_SIZE must be an integer"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT must be an integer"),
        ({"RANK": "2"}, "rank 2 of a world of 2"),
        ({"RANK": "-1"}, "rank -1 of a world of 2"),
        ({"WORLD_SIZE": "0"}, "a world of 0"),
        ({"RANK": ""}, "but not RANK"),
    ],
    ids=range(7),
)
def test_wrong_environment_is_an_error(monkeypatch, change, message):
    good = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    for name, value in {**good, **change}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DistributedError, match=message):
        init_process_group()
    assert not dist.is_initialized()


def test_group_of_another_size_is_an_error(monkeypatch):
    init_process_group()
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DistributedError, match=r"rank 0 of 1, but .* rank 1 of 2"):
        init_process_group()


def test_group_of_another_factory_is_an_error():
    first = TorchProcessGroupFactory("gloo")
    init_process_group(first)
    assert init_process_group(first) is dist.group.WORLD
    with pytest.raises(DistributedError, match="not made by"):
        init_process_group(TorchProcessGroupFactory("gloo"))


def test_group_that_the_program_made_is_left_alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert init_process_group() is dist.group.WORLD


class Counting:
    """A factory of one's own, which counts its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, store, rank, world_size, timeout):
        self.calls.append((rank, world_size, timeout))
        return TorchProcessGroupFactory("gloo")(store, rank, world_size, timeout)


def test_own_factory_makes_the_default_group_and_subgroups():
    factory = Counting()
    init_process_group(factory, timeout=timedelta(seconds=7))
    assert factory.calls == [(0, 1, timedelta(seconds=7))]
    subgroup = dist.new_group([0])
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=subgroup)
    assert len(factory.calls) == 2
    destroy_process_group()
    other = Counting()
    init_process_group(other)
    assert len(factory.calls) == 2
    assert len(other.calls) == 1


@pytest.mark.parametrize("backend", ["gloo", "GLOO", "cpu:gloo"])
def test_backend_is_chosen(backend):
    group = TorchProcessGroupFactory(backend)(
        dist.HashStore(), 0, 1, timedelta(seconds=5)
    )
    tensor = torch.ones(1)
    group.allreduce([tensor]).wait()
    assert not dist.is_initialized()


@pytest.mark.parametrize("backend", ["mpi", "", "cpu:gloo,cuda:warp", "glo"])
def test_unknown_backend_is_an_error(backend):
    with pytest.raises(DistributedError, match="must be made of gloo, nccl"):
        TorchProcessGroupFactory(backend)


@pytest.mark.skipif(dist.is_nccl_available(), reason="this torch has NCCL")
def test_backend_that_torch_lacks_is_an_error():
    with pytest.raises(DistributedError, match="has no nccl backend"):
        TorchProcessGroupFactory("nccl")


@pytest.mark.parametrize(
    ("cuda", "nccl", "ranks", "backend"),
    [
        (False, True, "1", "gloo"),
        (True, False, "1", "gloo"),
        (True, True, "2", "cpu:gloo,cuda:nccl"),
        (True, True, "3", "gloo"),
    ],
    ids=range(4),
)
def test_default_backend_follows_the_machine(
    monkeypatch, pretend_gpus, cuda, nccl, ranks, backend
):
    if cuda:
        pretend_gpus("a card", count=2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert _torch_process_group._default_backend() == backend


def test_each_rank_gets_a_device_of_its_own(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    choose = _torch_process_group._choose_device
    choose(5, {"LOCAL_RANK": "1"})
    choose(0, {})
    choose(5, {"LOCAL_RANK": "2"})
    assert chosen == [1, 0]


def sum_of_ranks():
    init_process_group(timeout=timedelta(seconds=30))
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor)
    destroy_process_group()
    return tensor.item()


@pytest.mark.slow
def test_launched_ranks_meet_through_the_environment():
    assert run_ranks(sum_of_ranks, 2, process_group=False) == [1.0, 1.0]


def test_backends_that_take_their_options_as_torch_hands_them():
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    group = TorchProcessGroupFactory("cpu:fake")(
        dist.HashStore(), 1, 4, timedelta(seconds=30)
    )
    assert (group.rank(), group.size()) == (1, 4)
    x = torch.ones(2)
    group.allreduce([x]).wait()
    assert torch.equal(x, torch.ones(2))
