"""The facts that are read off machine, model, batch and loop."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from drivetrain_core import ProgramError
from drivetrain_core._optimizer.source import OptimizerSource
from drivetrain_core._probe import (
    default_device,
    make_context,
    probe_batch,
    probe_device,
    probe_loop,
    probe_model,
    probe_world,
)
from drivetrain_core.builtin.cpu_threads import CpuThreads

CPU = torch.device("cpu")


def small(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight


def test_fingerprint_is_that_of_the_structure_not_of_the_values():
    one, other = small(), small()
    assert not torch.equal(one[0].weight, other[0].weight)
    assert probe_model(one).fingerprint == probe_model(other).fingerprint
    one(torch.ones(2, 3)).sum().backward()
    assert probe_model(one).fingerprint == probe_model(other).fingerprint


def frozen():
    model = small()
    model[0].weight.requires_grad_(False)
    return model


def renamed():
    return nn.Sequential(nn.ModuleDict({"a": small()}))


@pytest.mark.parametrize(
    "other",
    [
        lambda: small(5),
        lambda: small().to(torch.bfloat16),
        lambda: nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)),
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1, bias=False)),
        frozen,
        renamed,
    ],
    ids=["width", "dtype", "activation", "no bias", "frozen", "names"],
)
def test_fingerprint_changes_with_the_structure(other):
    assert probe_model(other()).fingerprint != probe_model(small()).fingerprint


def test_fingerprint_changes_when_weights_are_tied():
    untied = Tied()
    untied.head.weight = nn.Parameter(torch.zeros(7, 5))
    assert probe_model(untied).num_parameters == 70
    # The names and shapes are the same, and yet one of the two has half the values.
    assert probe_model(untied).fingerprint != probe_model(Tied()).fingerprint


def test_tied_parameters_count_once_and_are_named():
    facts = probe_model(Tied())
    assert (facts.num_parameters, facts.parameter_bytes) == (35, 140)
    assert facts.tied == (("embedding.weight", "head.weight"),)
    assert probe_model(small()).tied == ()


def test_model_facts_are_read():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ModuleList(nn.Linear(2, 2) for _ in range(3)),
        nn.Linear(2, 2).to(torch.bfloat16),
    )
    facts = probe_model(model)
    assert (facts.kind, facts.dtypes) == ("Sequential", ("bfloat16", "float32"))
    assert facts.has_conv2d
    assert facts.has_batch_norm
    assert (facts.blocks.container, facts.blocks.kind) == ("2", "Linear")
    assert facts.blocks.count == 3
    plain = probe_model(small())
    assert (plain.has_conv2d, plain.has_batch_norm, plain.blocks) == (False,) * 2 + (
        None,
    )


def test_cpu_facts_are_read(monkeypatch):
    facts = probe_device(CPU)
    assert facts.type == "cpu"
    assert facts.name
    assert facts.num_cores == len(os.sched_getaffinity(0))
    assert facts.num_threads == torch.get_num_threads()
    assert facts.memory_bytes > 1 << 28
    assert facts.capability == (0, 0)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert not probe_device(CPU).can_compile
    monkeypatch.setenv("CXX", "my-c++")
    assert probe_device(CPU).can_compile


def test_default_device_is_the_ranks_own_accelerator(monkeypatch):
    accelerator = torch.accelerator
    monkeypatch.setattr(accelerator, "is_available", lambda: False)
    assert default_device() == CPU
    monkeypatch.setattr(accelerator, "is_available", lambda: True)
    cuda = torch.device("cuda")
    monkeypatch.setattr(accelerator, "current_accelerator", lambda: cuda)
    monkeypatch.setattr(accelerator, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "6")
    assert default_device() == torch.device("cuda", 2)


@pytest.mark.parametrize(
    ("batch", "size", "signature", "num_tokens"),
    [
        (torch.zeros(4, 3), 4, "float32[*, 3]", None),
        (torch.zeros(2, 8, dtype=torch.long), 2, "int64[*, 8]", 16),
        ([torch.zeros(5), {"n": 1}], 5, "(float32[*], {n: int})", None),
    ],
)
def test_batch_facts_are_read(batch, size, signature, num_tokens):
    facts = probe_batch(batch)
    assert (facts.size, facts.signature) == (size, signature)
    assert facts.num_tokens == num_tokens


@pytest.mark.parametrize("batch", ["text", [], {}, torch.tensor(1.0), None])
def test_batch_without_a_batch_dimension_is_an_error(batch):
    with pytest.raises(ProgramError, match="tensor"):
        probe_batch(batch)


ROWS = TensorDataset(torch.arange(4))


class Own(DataLoader):
    """May yield what its arguments do not tell."""


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(4))


LOADERS = {
    "plain": (DataLoader(ROWS, batch_size=2), "torch"),
    "shuffled": (DataLoader(ROWS, batch_size=2, shuffle=True), "torch"),
    "distributed": (
        DataLoader(ROWS, sampler=DistributedSampler(ROWS, num_replicas=2, rank=0)),
        "sharded",
    ),
    "weighted": (
        DataLoader(ROWS, sampler=WeightedRandomSampler([1.0] * 4, 4)),
        "indexed",
    ),
    "own batches": (DataLoader(ROWS, batch_sampler=[[0, 1], [2, 3]]), "indexed"),
    "no batches": (DataLoader(ROWS, batch_size=None), "iterable"),
    "stream": (DataLoader(Stream(), batch_size=2), "iterable"),
    "subclass": (Own(ROWS, batch_size=2), "iterable"),
    "list": ([torch.zeros(2)], "iterable"),
}


@pytest.mark.parametrize("name", LOADERS)
def test_loader_kind_is_told(name):
    data, kind = LOADERS[name]
    assert loop_facts(data).loader == kind


def loop_facts(data, batch=None, owns_step=True):
    model = small()
    source = OptimizerSource.of(lambda p: torch.optim.Adam(p, lr=0.1), model)
    batch = torch.zeros(2) if batch is None else batch
    return probe_loop(source, data, batch, owns_step=owns_step)


def test_loop_facts_are_read():
    facts = loop_facts(DataLoader(ROWS, num_workers=1), owns_step=False)
    assert (facts.optimizer, facts.loader_workers) == ("Adam", 1)
    assert {"lr", "fused", "foreach"} <= facts.optimizer_options
    assert not facts.owns_step
    assert facts.sample_on_host
    assert not loop_facts([], batch=torch.zeros(2, device="meta")).sample_on_host


def test_world_is_one_rank_without_a_process_group():
    world = probe_world()
    assert (world.size, world.rank, world.local_size) == (1, 0, 1)


def test_context_gathers_the_facts():
    model, data = small(), DataLoader(ROWS, batch_size=2)
    source = OptimizerSource.of(torch.optim.SGD(model.parameters()), model)
    context = make_context(CPU, model, torch.zeros(6, 3), source, data, owns_step=True)
    assert context.model == probe_model(model)
    assert (context.batch.size, context.local_batch) == (6, 6)
    assert (context.loop.optimizer, context.loop.loader) == ("SGD", "torch")
    assert context.baseline is None
    assert context.summary() == {"device": context.device.name, "world": 1}


def test_worker_without_a_group_shares_the_node(monkeypatch):
    """As the workers of an elastic job do before they have one."""
    assert probe_world().local_size == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    world = probe_world()
    assert (world.size, world.local_size) == (1, 4)
    device = SimpleNamespace(type="cpu", num_cores=8, num_threads=1)
    context = SimpleNamespace(world=world, device=device)
    assert [found["num"] for found in CpuThreads().configs(context)] == [2]
