"""Checkpoints of several nodes over a network with slow links, cuts and partitions.

Each node is a network namespace with a runtime folder of its own; they share a folder
as storage. What a trainer does is told to it line by line.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drivetrain_checkpoint import list_checkpoints, verify

sys.path.append(str(Path(__file__).parents[1]))
from rig.namespaces import missing_because
from rig.network import Network
from rig.shape import Link

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing_because() is not None, reason=str(missing_because())),
]

TRAINER = textwrap.dedent(
    """
    import json, os, sys, time
    import torch, torch.distributed as dist
    from drivetrain_checkpoint import Checkpointer

    options = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    checkpointer = Checkpointer(job="nodes", **options)
    handle = None

    def state_of(value, mib):
        state = {f"of-{r}": torch.zeros(mib << 18) for r in range(world_size)}
        for r, tensor in enumerate(state.values()):
            tensor.fill_(value + r)
        return {**state, "position": value}

    def save(step, mib, persist):
        global handle
        handle = checkpointer.save(step, state_of(step, mib), persist=persist)

    def restore(mib):
        state = state_of(0, mib)
        step = checkpointer.restore(state)
        wanted = state_of(step, mib)
        fits = all(torch.equal(state[n], wanted[n]) for n in wanted if n != "position")
        return step, fits and state["position"] == step

    def wait(timeout_s, until):
        return handle.wait(timeout_s, until=until)

    def look():
        return {"durable": handle.durable, "replicated": handle.replicated}

    for line in sys.stdin:
        name, *arguments = json.loads(line)
        start = time.monotonic()
        try:
            answer = globals()[name](*arguments)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps([answer, time.monotonic() - start]), flush=True)
    """
)


class Job:
    """Trainers on nodes of a network, one rank on each."""

    def __init__(self, network, folder, places, **options):
        self._pool = ThreadPoolExecutor(len(places))
        self._trainers = []
        for rank, node in enumerate(places):
            runtime = Path(folder, f"node-{node}")
            runtime.mkdir(mode=0o700, exist_ok=True)
            env = {
                **os.environ,
                "XDG_RUNTIME_DIR": str(runtime),
                "MASTER_ADDR": network.address(places[0]),
                "MASTER_PORT": "29511",
                "GLOO_SOCKET_IFNAME": "eth0",
                "WORLD_SIZE": str(len(places)),
                "RANK": str(rank),
                "OMP_NUM_THREADS": "1",
            }
            where = {"folder": f"{folder}/run", "failure_domain": f"rack-{node % 2}"}
            text = json.dumps({**where, **options})
            self._trainers.append(
                network.start(
                    node,
                    [sys.executable, "-c", TRAINER, text],
                    env=env,
                    text=True,
                    stdin=-1,
                    stdout=-1,
                )
            )

    def ask(self, rank, *question):
        """What a rank answers, and how many seconds that took."""
        trainer = self._trainers[rank]
        trainer.stdin.write(json.dumps(question) + "\n")
        trainer.stdin.flush()
        line = trainer.stdout.readline()
        assert line, f"rank {rank} died of {question}"
        return json.loads(line)

    def all(self, *question):
        """What all ranks answer that are asked at once."""
        ranks = range(len(self._trainers))
        return list(self._pool.map(lambda rank: self.ask(rank, *question), ranks))

    def kill(self):
        for trainer in self._trainers:
            with contextlib.suppress(OSError):
                trainer.kill()
            with contextlib.suppress(OSError):
                trainer.communicate()


@pytest.fixture
def network():
    with Network(3) as found:
        yield found


@pytest.fixture
def start(network, tmp_path):
    jobs = []

    def begin(*places, **options):
        jobs.append(Job(network, tmp_path, places, **{"replicas": 1, **options}))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


def answers(found):
    return [answer for answer, _ in found]


@pytest.mark.faults
def test_commit_does_not_wait_for_a_slow_link(network, start, tmp_path):
    job = start(0, 1, 2)
    assert answers(job.all("save", 1, 1, True)) == [None] * 3
    assert answers(job.all("wait", 60, "replicated")) == [True] * 3
    network.shape(2, Link(rate_mbit_per_s=8))
    job.all("save", 2, 6, True)
    assert answers(job.all("wait", 60, "durable")) == [True] * 3
    # Its replica takes six seconds over such a link, each way.
    assert job.ask(2, "look")[0] == {"durable": True, "replicated": False}
    assert answers(job.all("wait", 60, "replicated")) == [True] * 3
    found = list_checkpoints(tmp_path / "run")
    assert [saved.step for saved in found] == [1, 2]
    assert [verify(saved.url) for saved in found] == [[], []]


@pytest.mark.slow
def test_lost_node_comes_back_from_the_memory_of_its_peers(network, start, tmp_path):
    # Storage is of no help here: there is a file in its place.
    (tmp_path / "run").write_text("storage that is not there")
    job = start(0, 1, 2)
    job.all("save", 5, 8, False)
    assert answers(job.all("wait", 60, "replicated")) == [True] * 3
    network.cut(1)
    network.kill(1)
    job.kill()
    fresh = network.add_node()
    again = start(0, fresh, 2)
    assert answers(again.all("restore", 8)) == [[5, True]] * 3


@pytest.mark.faults
def test_node_cut_off_during_a_replica_costs_the_replica_only(network, start, tmp_path):
    for node in range(3):
        network.shape(node, Link(rate_mbit_per_s=40))
    job = start(0, 1, 2)
    job.all("save", 3, 60, False)
    time.sleep(0.5)  # a part of four seconds of sending
    network.cut(1)
    found = job.all("wait", 60, "durable")
    assert answers(found) == [True] * 3
    assert max(took for _, took in found) < 45
    assert [saved.step for saved in list_checkpoints(tmp_path / "run")] == [3]
    assert job.ask(1, "look")[0] == {"durable": True, "replicated": False}
    said, took = job.ask(1, "wait", 120, "replicated")
    assert str(said).startswith("CheckpointError: step 3 has no replica: 10.")
    assert took < 90


@pytest.mark.slow
def test_partition_from_the_first_rank_does_not_hinder_the_commit(
    network, start, tmp_path
):
    job = start(0, 1, 2, replicas=0)
    job.all("save", 4, 2, False)
    network.part(0, 2)
    found = job.all("wait", 60, "durable")
    assert answers(found) == [True] * 3
    assert max(took for _, took in found) < 30
    (saved,) = list_checkpoints(tmp_path / "run")
    assert saved.world_size == 3
    assert verify(saved.url) == []
