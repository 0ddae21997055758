"""Several nodes: daemons that know each other by TCP only, on one machine here."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drivetrain_checkpoint import Checkpointer, CheckpointInfo, list_checkpoints, verify
from drivetrain_core import CheckpointError
from drivetrain_testing import run_ranks


def on_node(folder, node, **options):
    """A checkpointer of this rank, which runs on a node of its own."""
    runtime = f"{folder}/node-{node}"
    Path(runtime).mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["XDG_RUNTIME_DIR"] = runtime
    return Checkpointer(f"{folder}/run", job="nodes", **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for several nodes, whose daemons are ended after the test."""
    yield str(tmp_path)
    for node in tmp_path.glob("node-*"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(node))
        Checkpointer(tmp_path / "run", job="nodes").stop_daemon(at_once=True)


def state_of(rank, value):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(60.0).reshape(20, 3) + value
    return {
        "sharded": distribute_tensor(whole, mesh, [Shard(0)]),
        "everywhere": torch.full((1000,), float(value)),
        "position": value,
    }


def is_state(state, value):
    whole = torch.arange(60.0).reshape(20, 3) + value
    return (
        torch.equal(state["sharded"].full_tensor(), whole)
        and torch.equal(state["everywhere"], torch.full((1000,), float(value)))
        and state["position"] == value
    )


def save_on_two_nodes(folder):
    rank = dist.get_rank()
    checkpointer = on_node(folder, rank % 2)
    assert checkpointer.save(7, state_of(rank, 7)).wait(60)
    state = state_of(rank, 0)
    assert checkpointer.restore(state) == 7
    return is_state(state, 7)


@pytest.mark.slow
def test_nodes_commit_together_and_read_from_each_others_memory(folder):
    assert run_ranks(save_on_two_nodes, 3, folder) == [True] * 3
    (found,) = list_checkpoints(f"{folder}/run")
    assert isinstance(found, CheckpointInfo)
    assert found.world_size == 3
    assert verify(found.url) == []


def restore_on_fresh_nodes(folder, first_node, expected):
    rank = dist.get_rank()
    checkpointer = on_node(folder, first_node + rank)
    state = state_of(rank, 0)
    step = checkpointer.restore(state)
    return step == expected and is_state(state, expected)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_other_nodes_and_another_world_restore_from_storage(folder, world_size):
    run_ranks(save_on_two_nodes, 3, folder)
    found = run_ranks(restore_on_fresh_nodes, world_size, folder, 10, 7)
    assert found == [True] * world_size


def save_in_memory_with_replicas(folder):
    rank = dist.get_rank()
    checkpointer = on_node(folder, rank, replicas=1)
    for step in (5, 6):
        handle = checkpointer.save(step, state_of(rank, step), persist=False)
    assert handle.wait(30, until="replicated")
    dist.barrier()
    return not handle.durable


def restore_with_a_lost_node(folder):
    rank = dist.get_rank()
    # Rank 1's node is new; nodes 0 and 2 hold their own memory and its replica.
    checkpointer = on_node(folder, [0, 9, 2][rank], replicas=1)
    state = state_of(rank, 0)
    step = checkpointer.restore(state)
    return step, is_state(state, 6)


@pytest.mark.slow
def test_lost_node_is_restored_from_the_memory_of_others(folder, monkeypatch):
    # The trainers' end would bring it to storage, which must be of no help here.
    Path(folder, "run").write_text("storage that is not there")
    assert run_ranks(save_in_memory_with_replicas, 3, folder) == [True] * 3
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{folder}/node-1")
    Checkpointer(f"{folder}/run", job="nodes").stop_daemon(at_once=True)
    assert run_ranks(restore_with_a_lost_node, 3, folder) == [(6, True)] * 3


def count_reads(folder):
    from drivetrain_checkpoint._storage.checked_source import StorageSource

    rank = dist.get_rank()
    checkpointer = on_node(folder, 20 + rank)
    read, sizes = StorageSource.read, []

    def counting(self, start, size_bytes):
        sizes.append(size_bytes)
        return read(self, start, size_bytes)

    StorageSource.read = counting
    tensors = {f"t{i}": torch.zeros(200_000) for i in range(8)}
    checkpointer.restore({"many": tensors})
    assert all(torch.equal(t, torch.full_like(t, 3)) for t in tensors.values())
    return sum(size for size in sizes if size > 100_000)


def save_many(folder):
    tensors = {f"t{i}": torch.full((200_000,), 3.0) for i in range(8)}
    assert on_node(folder, 0).save(1, {"many": tensors}).wait(60)


@pytest.mark.slow
def test_what_all_ranks_need_is_read_once(folder):
    run_ranks(save_many, 2, folder)
    sizes = run_ranks(count_reads, 3, folder)
    whole = 8 * 200_000 * 4
    assert whole <= sum(sizes) <= 1.01 * whole
    assert max(sizes) < 0.75 * whole


def damaged_for_all(folder):
    checkpointer = on_node(folder, 30 + dist.get_rank())
    try:
        checkpointer.restore(
            {"many": {f"t{i}": torch.zeros(200_000) for i in range(8)}}
        )
    except CheckpointError as error:
        return str(error)
    return "restored"


@pytest.mark.slow
def test_damage_that_one_rank_finds_is_told_to_all(folder):
    run_ranks(save_many, 2, folder)
    (found,) = list_checkpoints(f"{folder}/run")
    file = f"{found.url}/rank-00001.safetensors"
    with Path(file).open("r+b") as handle:
        handle.seek(-5, os.SEEK_END)
        handle.write(b"x")
    texts = run_ranks(damaged_for_all, 2, folder)
    assert all("rank-00001.safetensors is damaged in block" in text for text in texts)


DYING = textwrap.dedent(
    """
    import os, sys, signal
    import torch, torch.distributed as dist
    from drivetrain_checkpoint import Checkpointer
    from drivetrain_checkpoint._arena import Arena

    folder, kill_rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.environ["XDG_RUNTIME_DIR"] = f"{folder}/node-{rank}"
    checkpointer = Checkpointer(f"{folder}/run", job="nodes")
    assert checkpointer.save(1, {"w": torch.ones(10)}).wait(60)
    if rank == kill_rank:  # in the midst of the second save
        Arena.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.save(2, {"w": torch.ones(10) * 2})
    sys.stdin.read()
    """
)


def save_again(folder):
    rank = dist.get_rank()
    checkpointer = on_node(folder, rank)
    state = {"w": torch.zeros(10)}
    assert checkpointer.restore(state) == 1
    state["w"] += 2
    return [checkpointer.save(step, state).wait(60) for step in (2, 3, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("kill_rank", [0, 1])
def test_save_that_a_dead_rank_will_never_end_holds_up_no_other(folder, kill_rank):
    for rank in range(2):
        Path(folder, f"node-{rank}").mkdir(mode=0o700)
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env.update(
        MASTER_PORT=str(store.port),
        WORLD_SIZE="2",
        TORCHELASTIC_USE_AGENT_STORE="True",
        OMP_NUM_THREADS="1",
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DYING, folder, str(kill_rank)],
            env={**env, "RANK": str(rank)},
            stdin=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    assert ranks[kill_rank].wait(60) == -signal.SIGKILL
    ranks[1 - kill_rank].kill()
    for process in ranks:
        process.communicate()
    assert run_ranks(save_again, 2, folder) == [[True] * 3] * 2
    assert [found.step for found in list_checkpoints(f"{folder}/run")] == [2, 3, 4]


def save_with_local_disks(folder):
    rank = dist.get_rank()
    checkpointer = on_node(folder, rank, local=f"{folder}/disk-{rank}")
    for step in (5, 6):
        checkpointer.save(step, state_of(rank, step))
    try:
        checkpointer.flush()
    except CheckpointError as error:
        return str(error)
    return "durable"


def restore_from_local_disks(folder):
    rank = dist.get_rank()
    checkpointer = on_node(folder, 40 + rank, local=f"{folder}/disk-{rank}")
    state = state_of(rank, 0)
    return checkpointer.restore(state), is_state(state, 6)


@pytest.mark.slow
def test_local_disks_give_back_what_neither_memory_nor_storage_has(folder, monkeypatch):
    Path(folder, "run").write_text("storage that is not there")
    said = run_ranks(save_with_local_disks, 2, folder)
    assert all("was not saved" in text for text in said)
    for node in (0, 1):
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{folder}/node-{node}")
        Checkpointer(f"{folder}/run", job="nodes").stop_daemon(at_once=True)
    assert run_ranks(restore_from_local_disks, 2, folder) == [(6, True)] * 2
