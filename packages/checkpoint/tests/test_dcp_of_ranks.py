"""States of every kind of model and optimizer that torch's functions take, over ranks.

They are what torch's own tests of `state_dict` and of its file system try: each is saved and
loaded by torch's writer and reader and by the ones of this package, and set.
"""

import functools
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import (
    ChunkShardingSpec,
    EnumerableShardingSpec,
    ShardMetadata,
)
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.checkpoint import state_dict as of_torch
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from drivetrain_checkpoint.dcp import Reader, Writer
from drivetrain_testing import run_ranks


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 6)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


class Unit(Bare):
    def get_extra_state(self):
        return "text of its own"

    def set_extra_state(self, state):
        self.extra = state


class Whole(nn.Module):
    def __init__(self, part=Unit):
        super().__init__()
        self.a, self.b = part(), part()
        self.head = nn.Linear(6, 6)
        self.register_buffer("scratch", torch.rand(2), persistent=False)

    def forward(self, x):
        return self.head(self.b(self.a(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.decoder = nn.Linear(4, 6, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, x):
        return self.decoder(self.embedding(x.abs().long() % 6))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.column, self.row = nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x):
        return self.row(self.column(x))


def plain(model):
    return model


def sharded(model):
    for part in model.children():
        fully_shard(part)
    return fully_shard(model)


def sharded_by_fsdp1(model):
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Bare}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )


def with_activation_checkpoints(model):
    checkpoint_wrapper.apply_activation_checkpointing(model)
    return DistributedDataParallel(model)


def of_tensor_parallel(model):
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"column": ColwiseParallel(), "row": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def compiled(model):
    return torch.compile(sharded(model), backend="eager")


def one_group(kind, model):
    return kind(model.parameters(), lr=0.1)


def frozen(model):
    for parameter in model.a.parameters():
        parameter.requires_grad_(False)
    return sharded(model)


def two_groups(model, *, empty=False):
    first, *others = model.parameters()
    groups = [{"params": [first, *others]}, {"params": [], "lr": 0.2}]
    if not empty:
        groups = [{"params": [first]}, {"params": others, "lr": 0.2}]
    return torch.optim.AdamW(groups, lr=0.1)


def scheduled(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    return optimizer


without_extra = functools.partial(Whole, Bare)  # torch's functions fail on FSDP1's
adam = functools.partial(one_group, torch.optim.Adam)
sgd = functools.partial(one_group, torch.optim.SGD)
FULL = {"full_state_dict": True}
KINDS = {
    "plain": (Whole, plain, adam, {}),
    "ddp": (Whole, DistributedDataParallel, adam, {}),
    "replicate": (Whole, replicate, sgd, {}),
    "fsdp2": (Whole, sharded, adam, {}),
    "fsdp2, offload": (Whole, sharded, adam, {"cpu_offload": True}),
    "fsdp2, full": (Whole, sharded, adam, FULL),
    "fsdp2, flat": (Whole, sharded, adam, {"flatten_optimizer_state_dict": True}),
    "fsdp2, compiled": (Whole, compiled, adam, {}),
    "fsdp2, frozen": (Whole, frozen, adam, {}),
    "fsdp2, a schedule": (Whole, sharded, scheduled, {}),
    "fsdp1": (without_extra, sharded_by_fsdp1, adam, {}),
    "fsdp1, full": (without_extra, sharded_by_fsdp1, adam, FULL),
    "activation checkpoints": (Whole, with_activation_checkpoints, adam, {}),
    "tied (ddp)": (Tied, DistributedDataParallel, adam, {}),
    "fsdp1, tied": (Tied, sharded_by_fsdp1, adam, {}),
    "tensor parallel": (Two, of_tensor_parallel, two_groups, {}),
    "an empty group": (
        Two,
        of_tensor_parallel,
        functools.partial(two_groups, empty=True),
        {},
    ),
}


def built(kind, seed):
    architecture, wrap, optimizer, _ = KINDS[kind]
    torch.manual_seed(seed)
    model = wrap(architecture())
    return model, optimizer(model)


def train(model, optimizer, steps=2):
    torch.manual_seed(7)
    for _ in range(steps):
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole_state(model, optimizer):
    """What the model and the optimizer hold, in full, as on one machine."""
    options = of_torch.StateDictOptions(full_state_dict=True)
    return dict(
        zip(
            ("model", "optimizer"),
            of_torch.get_state_dict(model, optimizer, options=options),
            strict=True,
        )
    )


def leaves_of(state, path=""):
    if isinstance(state, dict):
        for name, value in state.items():
            yield from leaves_of(value, f"{path}.{name}")
    elif isinstance(state, list | tuple):
        for index, value in enumerate(state):
            yield from leaves_of(value, f"{path}[{index}]")
    else:
        yield path, state


def differing(one, other):
    ours, theirs = dict(leaves_of(one)), dict(leaves_of(other))
    differ = sorted(ours.keys() ^ theirs.keys())
    for name in ours.keys() & theirs.keys():
        a, b = ours[name], theirs[name]
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        differ += [] if same else [name]
    return differ


def saved_and_set(kind, writer, reader):
    """Trains, saves, loads into a fresh model and optimizer; returns what differs."""
    options = of_torch.StateDictOptions(**KINDS[kind][3])
    first = built(kind, 0)
    train(*first)
    names = ("model", "optimizer")
    state = of_torch.get_state_dict(*first, options=options)
    dcp.save(dict(zip(names, state, strict=True)), storage_writer=writer)
    expected = whole_state(*first)
    other = built(kind, 1)
    train(*other, steps=1)
    state = of_torch.get_state_dict(*other, options=options)
    into = dict(zip(names, state, strict=True))
    apart = differing(whole_state(*other), expected)
    dcp.load(into, storage_reader=reader)
    of_torch.set_state_dict(
        *other,
        model_state_dict=into["model"],
        optim_state_dict=into["optimizer"],
        options=options,
    )
    return len(apart), differing(whole_state(*other), expected)


def tools_of(which, place):
    if which == "torch":
        return dcp.FileSystemWriter(place), dcp.FileSystemReader(place)
    return Writer(place, job="kinds"), Reader(place)


def try_kinds(kinds, place):
    warnings.simplefilter("ignore")
    for kind in kinds:
        for which in ("torch", "here"):
            folder = Path(place) / f"{kind}-{which}".replace(" ", "")
            apart, left = saved_and_set(kind, *tools_of(which, folder))
            assert apart
            assert not left, (kind, which, left)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "fsdp2", "fsdp1", "tensor parallel"])
def test_state_of_every_kind_comes_back(tmp_path, name):
    words = {"plain": ("plain", "ddp", "replicate", "activation", "tied (ddp)")}
    words["tensor parallel"] = ("tensor parallel", "an empty group")
    kinds = [kind for kind in KINDS if kind.startswith(words.get(name, name))]
    assert len(kinds) > 1
    run_ranks(try_kinds, 2, kinds, str(tmp_path), timeout_s=300.0)


def load_on_every_rank_from_the_first(place):
    """Loads a full state into a model without memory yet, and hands it out from rank 0."""
    warnings.simplefilter("ignore")
    first = built("fsdp2", 0)
    train(*first)
    full = of_torch.StateDictOptions(full_state_dict=True)
    for which in ("torch", "here"):
        writer, reader = tools_of(which, Path(place) / which)
        state = of_torch.get_model_state_dict(first[0])
        dcp.save({"model": state}, storage_writer=writer)
        into = {"model": Whole().state_dict()}
        dcp.load(into, storage_reader=reader)
        with torch.device("meta"):
            model = sharded(Whole())
        options = of_torch.StateDictOptions(
            full_state_dict=True, broadcast_from_rank0=True
        )
        given = into["model"] if dist.get_rank() == 0 else {}
        of_torch.set_model_state_dict(model, given, options=options)
        found = of_torch.get_model_state_dict(model, options=full)
        assert not differing(
            found, of_torch.get_model_state_dict(first[0], options=full)
        )


@pytest.mark.slow
def test_full_state_goes_from_rank_0_into_a_model_on_meta(tmp_path):
    run_ranks(load_on_every_rank_from_the_first, 2, str(tmp_path), timeout_s=120.0)


def load_the_optimizer_of_fsdp1(place):
    """As `load_sharded_optimizer_state_dict` is called: what it reads goes to FSDP1."""
    warnings.simplefilter("ignore")
    shards = StateDictType.SHARDED_STATE_DICT
    first = built("fsdp1", 0)
    train(*first)
    for which in ("torch", "here"):
        writer, reader = tools_of(which, Path(place) / which)
        with FullyShardedDataParallel.state_dict_type(first[0], shards):
            state = {
                "model": first[0].state_dict(),
                "optim": FullyShardedDataParallel.optim_state_dict(*first),
            }
            dcp.save(state, storage_writer=writer)
        other = built("fsdp1", 1)
        with FullyShardedDataParallel.state_dict_type(other[0], shards):
            into = {"model": other[0].state_dict()}
            dcp.load(into, storage_reader=reader)
            other[0].load_state_dict(into["model"])
            read = load_sharded_optimizer_state_dict(into["model"], "optim", reader)
            own = FullyShardedDataParallel.optim_state_dict_to_load(
                *other, read["optim"]
            )
            other[1].load_state_dict(own)
        assert not differing(whole_state(*other), whole_state(*first))


@pytest.mark.slow
def test_load_sharded_optimizer_state_dict(tmp_path):
    run_ranks(load_the_optimizer_of_fsdp1, 2, str(tmp_path), timeout_s=120.0)


def pieces(*cuts):
    """Cuts a tensor of 12 x 4 along its rows; pieces go to the ranks by turns."""
    sizes = [b - a for a, b in zip((0, *cuts), (*cuts, 12), strict=True)]
    shards = [
        ShardMetadata([at, 0], [size, 4], placement=f"rank:{index % 2}/cpu")
        for index, (at, size) in enumerate(zip((0, *cuts), sizes, strict=True))
    ]
    return EnumerableShardingSpec(shards)


CUTS = {
    "rows": ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu"]),
    "columns": ChunkShardingSpec(1, ["rank:0/cpu", "rank:1/cpu"]),
    "four": ChunkShardingSpec(
        0, ["rank:0/cpu", "rank:1/cpu", "rank:1/cpu", "rank:0/cpu"]
    ),
    "uneven": pieces(8),
    "many": pieces(2, 3, 6, 9),
}
CAN_BE_SAVED = {"rows", "columns"}


def whole_of(tensor):
    whole = torch.zeros(tensor.size()) if dist.get_rank() == 0 else None
    tensor.gather(out=whole)
    return whole


def reshard_sharded_tensors(place):
    """A ShardedTensor of every cut is saved, and loaded into every other and a tensor."""
    warnings.simplefilter("ignore")
    for name, spec in CUTS.items():
        torch.manual_seed(1)
        values = torch.rand(12, 4)
        state = {"sharded": sharded_tensor.zeros(spec, 12, 4), "whole": values}
        for shard in state["sharded"].local_shards():
            (row, column), (rows, columns) = (
                shard.metadata.shard_offsets,
                shard.metadata.shard_sizes,
            )
            shard.tensor.copy_(values[row : row + rows, column : column + columns])
        for which in ("torch", "here"):
            writer, reader = tools_of(which, Path(place) / f"{name}-{which}")
            if which == "here" and name not in CAN_BE_SAVED:
                with pytest.raises(
                    dcp.api.CheckpointException, match="make it a DTensor"
                ):
                    dcp.save(state, storage_writer=writer)
                continue
            dcp.save(state, storage_writer=writer)
            for other in CUTS.values():
                into = {
                    "sharded": torch.zeros(12, 4),
                    "whole": sharded_tensor.zeros(other, 12, 4),
                }
                dcp.load(into, storage_reader=reader)
                assert torch.equal(into["sharded"], values)
                whole = whole_of(into["whole"])
                assert dist.get_rank() or torch.equal(whole, values)


@pytest.mark.slow
def test_sharded_tensors_are_loaded_into_every_cut(tmp_path):
    run_ranks(reshard_sharded_tensors, 2, str(tmp_path), timeout_s=120.0)
