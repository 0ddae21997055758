"""torch's distributed checkpoint writes and reads this format."""

import datetime as dt
import gc
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from drivetrain_checkpoint import (
    Checkpointer,
    CorruptCheckpointError,
    StorageError,
    list_checkpoints,
    verify,
)
from drivetrain_checkpoint._save.remote_shard import describe, merge_tensors
from drivetrain_checkpoint.dcp import Reader, Stager, Writer
from drivetrain_core import CheckpointError
from drivetrain_testing import run_ranks

# There is no process group in these tests, of which DCP warns.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Position:
    """An object of a class that nobody allowed."""


@pytest.fixture
def writer(tmp_path):
    found = Writer(tmp_path / "run", job="dcp")
    yield found
    found.close()


def save(state, writer, **options):
    return torch_dcp.save(state, storage_writer=writer, **options)


def test_dcp_saves_and_loads_nested_state(tmp_path, writer):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "extra": {"seen": 7, "names": {"a", "b"}, "loss": float("inf"), "none": None},
        "scalar": torch.tensor(4.0),
        "empty": torch.zeros(0, 3),
        "bits": torch.tensor([True, False]),
    }
    save(state, writer)
    (info,) = list_checkpoints(tmp_path / "run")
    assert verify(info.url) == []
    assert info.step == 0
    again = nn.Linear(3, 2)
    other = torch.optim.AdamW(again.parameters())
    again(torch.ones(1, 3)).sum().backward()
    other.step()
    target = {
        "model": again.state_dict(),
        "optimizer": other.state_dict(),
        "extra": {"seen": 0, "names": None, "loss": 0.0, "none": 1},
        "scalar": torch.tensor(0.0),
        "empty": torch.zeros(0, 3),
        "bits": torch.tensor([False, False]),
    }
    torch_dcp.load(target, storage_reader=Reader(tmp_path / "run"))
    assert torch.equal(again.weight, model.weight)
    moment = target["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(moment, state["optimizer"]["state"][0]["exp_avg"])
    assert target["extra"] == state["extra"]
    assert target["scalar"] == 4
    assert target["bits"].tolist() == [True, False]


def test_steps_count_on_and_follow_the_checkpoint_id(tmp_path, writer):
    for value in range(3):
        save({"a": torch.full((2,), float(value))}, writer)
    save({"a": torch.ones(2)}, writer, checkpoint_id="step-100")
    save({"a": torch.ones(2)}, writer)
    steps = [info.step for info in list_checkpoints(tmp_path / "run")]
    assert steps == [0, 1, 2, 100, 101]
    target = {"a": torch.zeros(2)}
    torch_dcp.load(target, storage_reader=Reader(tmp_path / "run", step=2))
    assert target["a"].tolist() == [2, 2]
    url = list_checkpoints(tmp_path / "run")[1].url
    torch_dcp.load(target, checkpoint_id=url, storage_reader=Reader(tmp_path / "run"))
    assert target["a"].tolist() == [1, 1]
    torch_dcp.load(
        target,
        checkpoint_id=tmp_path / "run" / "step-100",
        storage_reader=Reader(tmp_path / "run"),
    )
    for other in ("final", "epoch=1-loss=0.25", "step-100/best", tmp_path / "step-7"):
        with pytest.raises(ValueError, match="checkpoint_id"):
            writer.reset(other)
    with pytest.raises(ValueError, match="at least 0"):
        Writer(tmp_path, step=-1)


def test_checkpoints_of_a_checkpointer_are_read(tmp_path):
    model = nn.Linear(4, 4)
    checkpointer = Checkpointer(tmp_path, job="native")
    checkpointer.save(5, {"model": model, "position": 9}).wait(60)
    checkpointer.stop_daemon()
    target = {"model": nn.Linear(4, 4).state_dict(), "position": 0}
    torch_dcp.load(target, storage_reader=Reader(tmp_path))
    assert torch.equal(target["model"]["weight"], model.weight)
    assert target["position"] == 9


def test_checkpoints_of_dcp_are_restored_by_a_checkpointer(tmp_path, writer):
    save({"a": torch.arange(3.0), "seen": 4}, writer)
    state = {"a": torch.zeros(3), "seen": 0}
    other = Checkpointer(tmp_path / "run", job="other", adopt=True)
    assert other.restore(state) == 0
    assert state["a"].tolist() == [0, 1, 2]
    assert state["seen"] == 4
    other.stop_daemon()


def test_what_would_not_be_loaded_is_not_saved(tmp_path, writer):
    for value in (Position(), np.arange(3), Path("/data"), dt.datetime(2026, 1, 2)):
        with pytest.raises(
            CheckpointException, match=r"object is of type .* cannot hold"
        ):
            save({"a": torch.ones(1), "object": value}, writer)
    assert list_checkpoints(tmp_path / "run") == []


def test_writer_that_nobody_has_leaves_no_daemon(tmp_path):
    for step in range(3):
        made = Writer(tmp_path / f"step-{step}", job="loop")
        save({"a": torch.full((2,), float(step))}, made)
        checkpointer = made._checkpointer
        assert checkpointer.has_daemon()
        del made
        gc.collect()
        assert not checkpointer.has_daemon()
    target = {"a": torch.zeros(2)}
    torch_dcp.load(target, storage_reader=Reader(tmp_path / "step-1"))
    assert target["a"].tolist() == [1, 1]


def test_object_that_nobody_allowed_is_not_loaded(tmp_path, writer):
    with torch.serialization.safe_globals([Position]):
        save({"a": torch.ones(1), "object": Position()}, writer)
    target = {"a": torch.zeros(1), "object": None}
    with pytest.raises(CheckpointException, match="add_safe_globals"):
        torch_dcp.load(target, storage_reader=Reader(tmp_path / "run"))
    with torch.serialization.safe_globals([Position]):
        torch_dcp.load(target, storage_reader=Reader(tmp_path / "run"))
    assert isinstance(target["object"], Position)


def test_damage_is_found_and_nothing_is_loaded_from_nowhere(tmp_path, writer):
    # torch 2.11 goes on without metadata, and says that alone.
    is_old = torch.__version__.startswith("2.11.")
    said = "metadata is None" if is_old else "has no checkpoint"
    with pytest.raises(CheckpointException, match=said):
        torch_dcp.load({"a": torch.ones(1)}, storage_reader=Reader(tmp_path / "no"))
    save({"weights": torch.ones(1000)}, writer)
    (info,) = list_checkpoints(tmp_path / "run")
    with Path(info.url, "rank-00000.safetensors").open("r+b") as stream:
        stream.seek(-2, 2)
        stream.write(b"x")
    with pytest.raises(CheckpointException, match=r"damaged in block 0.* weights"):
        torch_dcp.load(
            {"weights": torch.zeros(1000)}, storage_reader=Reader(tmp_path / "run")
        )
    assert not Reader.validate_checkpoint_id(tmp_path)
    assert Reader.validate_checkpoint_id(info.url)
    reader = Reader(tmp_path / "run")
    metadata = reader.read_metadata()
    assert list(metadata.state_dict_metadata) == ["weights"]
    with Path(info.url, "manifest.json").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(CorruptCheckpointError, match=r"manifest\.json is damaged"):
        Reader(tmp_path / "run").read_metadata()


def test_what_cannot_be_saved_is_refused(writer):
    with pytest.raises(CheckpointException, match="float8_e4m3fnuz"):
        save({"a": torch.ones(1, dtype=torch.float8_e4m3fnuz)}, writer)
    with pytest.raises(CheckpointException, match="a is of type lock"):
        save({"a": threading.Lock()}, writer)
    with pytest.raises(ValueError, match="use_collectives"):
        save({"a": torch.ones(1)}, writer, use_collectives=False)

    class Planner(DefaultSavePlanner):
        def transform_object(self, write_item, object):
            return object

    with pytest.raises(CheckpointException, match="transform_object of its own"):
        save({"a": torch.ones(1)}, writer, planner=Planner())
    save({"a": torch.ones(1)}, writer)  # the next save works


@pytest.mark.slow
def test_async_save_keeps_what_was_there_when_it_returned(tmp_path, writer):
    stager = Stager()
    weights = torch.zeros(300_000)
    state = {"weights": weights, "seen": [0], "nested": {"t": (torch.ones(2), 3)}}
    futures = []
    for step in range(4):
        weights.fill_(step)
        state["seen"][0] = step
        futures.append(
            torch_dcp.async_save(state, async_stager=stager, storage_writer=writer)
        )
        weights.fill_(-1)
        state["seen"][0] = -1
    for future in futures:
        future.result(timeout=60)
    infos = list_checkpoints(tmp_path / "run")
    assert len({info.step for info in infos}) == 4
    found = set()
    for info in infos:
        target = {"weights": torch.empty(300_000), "seen": None}
        torch_dcp.load(target, storage_reader=Reader(tmp_path / "run", info.step))
        value = target["weights"][0].item()
        assert (target["weights"] == value).all()
        assert target["seen"] == [value]
        found.add(value)
    assert found == {0, 1, 2, 3}
    stager.close()


@pytest.mark.slow
def test_stager_never_writes_over_what_is_held():
    stager = Stager(timeout_s=0.2)
    state = {"a": torch.zeros(5), "b": torch.zeros(3, dtype=torch.int8)}
    first = stager.stage(state)
    address = first["a"].data_ptr()
    state["a"].fill_(1)
    second = stager.stage(state)
    assert first["a"].tolist() == [0] * 5
    with pytest.raises(StorageError, match="two earlier saves"):
        stager.stage(state)
    part = first["a"][:2]
    del first
    with pytest.raises(StorageError, match="two earlier saves"):
        stager.stage(state)
    del part
    third = stager.stage(state)
    assert third["a"].data_ptr() == address
    assert second["a"].tolist() == third["a"].tolist() == [1] * 5
    with pytest.raises(TypeError, match="cannot be staged"):
        stager.stage({"a": torch.ones(2).to_sparse()})
    with pytest.raises(ValueError, match="timeout_s"):
        Stager(timeout_s=0)


def _save_async(folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    state = {"a": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)])}
    writer, stager = Writer(folder, job="ranks"), Stager()
    for step in range(3):
        state["a"].to_local().fill_(step)
        future = torch_dcp.async_save(
            state, async_stager=stager, storage_writer=writer, process_group=None
        )
        state["a"].to_local().fill_(-1)
        future.result(timeout=60)
    return True


@pytest.mark.slow
def test_ranks_save_beside_the_training(tmp_path):
    run_ranks(_save_async, 2, str(tmp_path))
    for step in range(3):
        target = {"a": torch.empty(6, 4)}
        torch_dcp.load(target, storage_reader=Reader(tmp_path, step))
        assert (target["a"] == step).all()


def _save_torn(folder):
    """Only rank 1 has something that cannot be saved; both are told."""
    state = {"a": torch.ones(2)}
    if dist.get_rank():
        state["b"] = torch.ones(2, dtype=torch.float8_e4m3fnuz)
    writer = Writer(folder, job="ranks")
    try:
        torch_dcp.save(state, storage_writer=writer)
    except CheckpointException as error:
        said = str(error)
    state.pop("b", None)
    torch_dcp.save(state, storage_writer=writer)
    return said


@pytest.mark.slow
def test_rank_that_cannot_save_keeps_nobody_waiting(tmp_path):
    for said in run_ranks(_save_torn, 2, str(tmp_path)):
        assert "float8_e4m3fnuz" in said
    assert [info.step for info in list_checkpoints(tmp_path)] == [1]


def test_writer_crosses_to_another_process(tmp_path):
    again = pickle.loads(pickle.dumps(Writer(tmp_path, job="dcp", step=3)))
    save({"a": torch.ones(1)}, again)
    assert [info.step for info in list_checkpoints(tmp_path)] == [3]
    again.close()


def _save_sharded(folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    half = mesh["b"] if rank < 2 else None
    whole = torch.arange(35.0).view(7, 5)
    state = {
        "grid": distribute_tensor(whole, mesh, [Shard(0), Shard(1)]),
        "twice": distribute_tensor(whole + 1, mesh, [Shard(0), Shard(0)]),
        "copied": distribute_tensor(whole + 2, mesh, [Replicate(), Shard(0)]),
        "plain": whole + 3,
        f"rank.{rank}.rng": torch.full((3,), float(rank)),
        f"rank.{rank}.seen": rank,
        "same": "all",
    }
    if half is not None:
        state["stage"] = distribute_tensor(whole + 4, half, [Shard(0)])
    writer = Writer(folder, job="ranks")
    torch_dcp.save(state, storage_writer=writer)
    torch_dcp.save(state, storage_writer=writer)
    return os.environ["XDG_RUNTIME_DIR"]


def _load_sharded(folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    names = ("grid", "twice", "copied", "plain", "stage")
    state = {
        name: distribute_tensor(torch.zeros(7, 5), mesh, [Shard(i % 2)])
        for i, name in enumerate(names)
    }
    state |= {f"rank.{r}.rng": torch.zeros(3) for r in range(4)}
    state |= {f"rank.{r}.seen": None for r in range(4)} | {"same": ""}
    torch_dcp.load(state, storage_reader=Reader(folder))
    return {
        k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()
    }


@pytest.mark.slow
def test_ranks_save_and_others_load(tmp_path):
    run_ranks(_save_sharded, 4, str(tmp_path))
    assert [info.step for info in list_checkpoints(tmp_path)] == [0, 1]
    for found in run_ranks(_load_sharded, 3, str(tmp_path)):
        whole = torch.arange(35.0).view(7, 5)
        for i, name in enumerate(("grid", "twice", "copied", "plain", "stage")):
            assert torch.equal(found[name], whole + i), name
        for rank in range(4):
            assert found[f"rank.{rank}.rng"].tolist() == [rank] * 3
            assert found[f"rank.{rank}.seen"] == rank
        assert found["same"] == "all"


def test_ranks_that_differ_are_told():
    ours, theirs = {"a": torch.ones(2)}, {"a": torch.ones(3)}
    with pytest.raises(ValueError, match=r"a is torch.float32 of \[2\] on rank 0, but"):
        merge_tensors(ours, [describe(ours), describe(theirs)])
    with pytest.raises(TypeError, match="sparse"):
        describe({"a": torch.ones(2).to_sparse()})


def test_ranks_that_found_different_saves_do_not_mix_them(tmp_path, writer):
    save({"a": torch.ones(1)}, writer)
    save({"a": torch.ones(1)}, writer)
    from torch.distributed.checkpoint.planner import LoadPlan

    plans = []
    for step in (0, 1):
        reader = Reader(tmp_path / "run", step)
        reader.read_metadata()
        plans.append(reader.prepare_local_plan(LoadPlan([])))
    with pytest.raises(CheckpointError, match="different checkpoints"):
        reader.prepare_global_plan(plans)
