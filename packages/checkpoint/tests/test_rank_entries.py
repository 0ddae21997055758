"""Plain data that differs from rank to rank is kept for each, and given back to it."""

import random

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensorMetadata
from torch.distributed._shard.sharding_spec import ShardMetadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

from drivetrain_checkpoint import Checkpointer, CorruptCheckpointError
from drivetrain_checkpoint._layout.entries import read_entries
from drivetrain_checkpoint._save.remote_shard import on_mesh
from drivetrain_checkpoint.dcp import Reader, Writer
from drivetrain_core import CheckpointError
from drivetrain_core.services.plain_json import to_json
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Loader:
    def __init__(self, position=0):
        self.position = position

    def state_dict(self):
        workers = {f"worker_{dist.get_rank()}": [self.position] * (dist.get_rank() + 1)}
        return {"position": self.position, "workers": workers, "at": torch.tensor(7)}

    def load_state_dict(self, state):
        self.position = state["position"]
        assert state["workers"] == self.state_dict()["workers"]


def own_state():
    rank = dist.get_rank()
    random.seed(rank)
    torch.manual_seed(rank)
    return {
        "model": nn.Linear(2, 2),
        "loader": Loader(100 + rank),
        "random": random.getstate(),
        "rng": torch.get_rng_state(),
        "nested": [{"rng": torch.full((3,), rank), "large": torch.ones(1 << 18)}],
        "epoch": 3,
    }


def fresh_state():
    return {
        "model": nn.Linear(2, 2),
        "loader": Loader(),
        "random": None,
        "rng": torch.zeros(torch.get_rng_state().shape, dtype=torch.uint8),
        "nested": None,
        "epoch": 0,
    }


def save_and_restore(folder, overlap):
    checkpointer = Checkpointer(folder, job="own", overlap=overlap)
    rank, state = dist.get_rank(), own_state()
    weight = state["model"].weight.detach().clone()
    dist.broadcast(weight, 0)
    state["model"].weight.data.copy_(weight)
    rng = state["rng"].clone()
    for step in (1, 2):
        checkpointer.save(step, state)
    assert checkpointer.flush()
    state["rng"].zero_()
    for place in ("memory", "storage"):
        if place == "storage":
            dist.barrier()
            if rank == 0:
                checkpointer.stop_daemon()
            dist.barrier()
            checkpointer = Checkpointer(folder, job="own", overlap=overlap)
        into = fresh_state()
        assert checkpointer.restore(into) == 2
        assert into["loader"].position == 100 + rank
        random.seed(rank)
        assert into["random"] == random.getstate()
        assert torch.equal(into["rng"], rng)
        assert into["nested"][0]["rng"].tolist() == [rank] * 3
        assert into["nested"][0]["large"].sum() == 1 << 18
        assert torch.equal(into["model"].weight, weight)
        assert into["epoch"] == 3
    # What is alike again is one for all; what was not, has a place of its own.
    state["loader"] = {"position": 5}
    checkpointer.save(3, state).wait()
    dist.barrier()
    if rank == 0:
        checkpointer.stop_daemon()


@pytest.mark.parametrize("overlap", [False, True])
def test_each_rank_gets_its_own_back(tmp_path, caplog, overlap):
    run_ranks(save_and_restore, 2, tmp_path, overlap)
    checkpointer = Checkpointer(tmp_path, job="own")
    into = {**fresh_state(), "loader": {"position": 0}, "random": "mine"}
    assert checkpointer.restore(into) == 3
    assert into["loader"] == {"position": 5}
    assert into["epoch"] == 3
    # In another world nobody's are given to it, and that is said.
    assert into["random"] == "mine"
    assert into["rng"].sum() == 0
    text = (
        "'random' is left as it is: each of 2 ranks has saved its own, and there are 1"
    )
    assert text in caplog.text
    checkpointer.stop_daemon()


def refused(folder):
    checkpointer = Checkpointer(folder, job="refused")
    rank = dist.get_rank()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + rank)
    state = {"model": model, "optimizer": optimizer, "seed": rank}
    with pytest.raises(ValueError, match=r"save different plain data.*\(optimizer\)"):
        checkpointer.save(1, state)
    with pytest.raises(ValueError, match="save different plain data"):
        checkpointer.save(
            1, {"seed": rank, "large": {"x": torch.ones(1 << (18 + rank))}}
        )
    with pytest.raises(ValueError, match=r"different plain data.*\(extra, more\)"):
        checkpointer.save(1, {"extra" if rank else "more": 3})
    # Something of each rank is known by now: who cannot save must not be waited for.
    with pytest.raises((TypeError, CheckpointError), match="is of type object"):
        checkpointer.save(1, {"seed": object() if rank else 3})
    assert checkpointer.latest() is None
    checkpointer.save(2, {"seed": rank}).wait()
    into = {"seed": -1}
    assert checkpointer.restore(into) == 2
    assert into == {"seed": rank}
    dist.barrier()
    if rank == 0:
        checkpointer.stop_daemon()


def test_what_is_one_for_all_ranks_must_not_differ(tmp_path):
    run_ranks(refused, 2, tmp_path)


def save_by_dcp(folder):
    rank = dist.get_rank()
    writer = Writer(folder, job="dcp")
    dcp.save({"seen": rank, "epoch": 3, "w": torch.ones(2)}, storage_writer=writer)
    state = {"seen": -1, "epoch": 0, "w": torch.zeros(2)}
    dcp.load(state, storage_reader=Reader(folder))
    assert (state["seen"], state["epoch"], state["w"].sum()) == (rank, 3, 2)


def test_dcp_gives_each_rank_its_own_back_or_says_why_not(tmp_path):
    run_ranks(save_by_dcp, 2, tmp_path)
    state = {"epoch": 0, "w": torch.zeros(2)}
    dcp.load(state, storage_reader=Reader(tmp_path))
    assert state["epoch"] == 3
    with pytest.raises(CheckpointException, match="each of 2 ranks has saved a 'seen'"):
        dcp.load({"seen": -1}, storage_reader=Reader(tmp_path))


def sharded_by_fsdp1(folder):
    def make(seed):
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 5))
        model = FullyShardedDataParallel(layers, device_id=torch.device("cpu"))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model(torch.ones(2, 5)).sum().backward()
        optimizer.step()
        return model, optimizer

    def whole(model):
        with FullyShardedDataParallel.summon_full_params(model):
            return {n: p.detach().clone() for n, p in model.named_parameters()}

    saved, fresh = make(0), make(1)
    names = ("model", "optimizer")
    state = dict(zip(names, get_state_dict(*saved), strict=True))
    dcp.save(state, storage_writer=Writer(folder, job="fsdp1"))
    into = dict(zip(names, get_state_dict(*fresh), strict=True))
    dcp.load(into, storage_reader=Reader(folder))
    set_state_dict(
        *fresh, model_state_dict=into["model"], optim_state_dict=into["optimizer"]
    )
    expected, found = whole(saved[0]), whole(fresh[0])
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    return {n.removeprefix("_fsdp_wrapped_module."): t for n, t in expected.items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_shards_of_fsdp1_are_saved_and_loaded_anywhere(tmp_path):
    weights = run_ranks(sharded_by_fsdp1, 2, tmp_path)[0]
    state = {"model": {name: torch.zeros_like(t) for name, t in weights.items()}}
    dcp.load(state, storage_reader=Reader(tmp_path))
    assert all(torch.equal(state["model"][name], t) for name, t in weights.items())


def test_shards_that_are_cut_otherwise_are_refused():
    class Uneven:
        @staticmethod
        def metadata():
            shards = [
                ShardMetadata([0], [1], "rank:0/cpu"),
                ShardMetadata([1], [3], "rank:1/cpu"),
            ]
            return ShardedTensorMetadata(shards, torch.Size([4]))

        @staticmethod
        def sharding_spec():
            return None

    with pytest.raises(TypeError, match=r"w is a ShardedTensor .* make it a DTensor"):
        on_mesh("w", Uneven())


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "ranks", "plain": ["ranks", [["value", 1]]]},
        {"kind": "ranks", "of": "data", "plain": ["ranks"]},
        {"kind": "ranks", "of": "data", "plain": ["ranks", 3]},
        {"kind": "ranks", "of": "data", "plain": ["ranks", [["value", 1], ["no", 2]]]},
        {"kind": "ranks", "of": "ranks", "plain": ["ranks", [["ranks", []]]]},
        {"kind": "ranks", "of": "model", "plain": ["ranks", [["dict", []]]]},
        {"kind": "model", "plain": ["dict", []], "ties": ["a"]},
        {"kind": "model", "plain": ["dict", []], "ties": {"a": 3}},
        {"kind": "state_dict", "plain": ["value", 3]},
        {"kind": "state_dict", "plain": ["dict", [[3, ["value", 3]]]]},
    ],
)
def test_entries_that_are_crafted_are_refused(entry):
    with pytest.raises(CorruptCheckpointError, match="has no entries of a state"):
        read_entries(to_json({"x": {"tensors": [], **entry}}), "it")
