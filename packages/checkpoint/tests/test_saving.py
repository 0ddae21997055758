"""What a save may be asked for: memory alone, overlap, warm memory, preemption."""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch

from drivetrain_checkpoint import (
    Checkpointer,
    DaemonError,
    Keep,
    StorageError,
    list_checkpoints,
)
from drivetrain_checkpoint._daemon import trainer_registry
from drivetrain_checkpoint._daemon.client import visit
from drivetrain_checkpoint._daemon.listener import Listener
from drivetrain_checkpoint._daemon.service import Daemon
from drivetrain_checkpoint._daemon.trainer_registry import TrainerRegistry
from drivetrain_checkpoint._peers.connection import socket_path
from drivetrain_checkpoint._peers.nodes import Node, NodeTable
from drivetrain_checkpoint._save import rank_memory
from drivetrain_core import CheckpointError, machine_limits
from drivetrain_testing import is_alive


def state_of(value, size=1000):
    return {"weights": torch.full((size,), float(value)), "position": value}


def restored(folder, size=1000):
    state = state_of(-1, size)
    step = Checkpointer(folder, job="saving").restore(state)
    assert torch.equal(state["weights"], torch.full((size,), float(step)))
    return step


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def checkpointer(folder):
    return Checkpointer(folder, job="saving")


def test_save_without_memory_for_it_is_refused_and_loses_nothing(
    checkpointer, folder, monkeypatch
):
    assert checkpointer.save(1, state_of(1)).wait(60)
    size = 1 << 20

    def left(available):
        found = machine_limits.Memory(available, 1 << 40)
        monkeypatch.setattr(machine_limits, "memory", lambda: found)

    left(8 * size)  # two copies of four bytes each need more
    for _ in range(2):
        with pytest.raises(MemoryError, match="8,388,608 are left"):
            checkpointer.save(2, state_of(2, size))
    with pytest.raises(MemoryError, match="two copies"):
        checkpointer.prewarm(state_of(2, size), wait=True)
    assert checkpointer.save(2, state_of(2)).wait(60)
    assert restored(folder) == 2
    left(9 * size)
    assert checkpointer.save(3, state_of(3, size)).wait(60)
    left(3 * size)  # the second copy's pages are not there yet
    with pytest.raises(MemoryError, match="two copies"):
        checkpointer.save(4, state_of(4, size))
    left(5 * size)
    for step in (4, 5, 6):
        assert checkpointer.save(step, state_of(step, size)).wait(60)
        left(0)
    assert restored(folder, size) == 6


def test_save_in_memory_alone_is_restored_and_is_on_no_storage(checkpointer, folder):
    handle = checkpointer.save(3, state_of(3), persist=False)
    assert handle.staged
    assert not handle.durable
    assert not handle.done
    assert list_checkpoints(folder) == []
    assert restored(folder) == 3
    assert list_checkpoints(folder) == []


def test_flush_brings_memory_to_storage(checkpointer, folder):
    checkpointer.save(3, state_of(3), persist=False)
    assert checkpointer.flush()
    assert [found.step for found in list_checkpoints(folder)] == [3]


def test_memory_that_was_overwritten_is_not_durable(checkpointer, folder):
    first = checkpointer.save(1, state_of(1), persist=False)
    for step in (2, 3):
        checkpointer.save(step, state_of(step), persist=False)
    with pytest.raises(CheckpointError, match=r"step 1 was not saved: .*newer"):
        first.wait(60)
    assert checkpointer.flush()
    assert [found.step for found in list_checkpoints(folder)] == [2, 3]


@pytest.mark.slow
def test_end_of_the_trainer_brings_its_memory_to_storage(folder):
    script = textwrap.dedent(
        """
        import os, signal, sys, torch
        from drivetrain_checkpoint import Checkpointer
        checkpointer = Checkpointer(sys.argv[1], job="saving")
        for step in (1, 2, 3):
            state = {"weights": torch.full((1000,), float(step)), "position": step}
            checkpointer.save(step, state, persist=False)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=False)
    again = Checkpointer(folder, job="saving")
    again.stop_daemon()  # which first ends what it has begun
    assert 3 in [found.step for found in list_checkpoints(folder)]


def test_stop_loses_nothing_of_a_trainer_whose_end_was_not_noticed_yet(
    folder, monkeypatch
):
    stopped = threading.Event()
    leave = Daemon._leave

    def leave_late(daemon, connection):
        assert stopped.wait(60)
        leave(daemon, connection)

    monkeypatch.setattr(Daemon, "_leave", leave_late)
    path = socket_path("saving", f"{folder}")
    daemon = Daemon(Listener(path))
    serving = threading.Thread(target=daemon.serve, daemon=True)
    serving.start()
    trainer = Checkpointer(folder, job="saving")
    trainer.save(3, state_of(3), persist=False)
    trainer._job.client.close()  # as its end does
    assert visit("saving", f"{folder}", {"op": "stop"}) == {"ok": True}
    assert [found.step for found in list_checkpoints(folder)] == [3]
    stopped.set()
    serving.join(60)


def test_memory_of_a_run_before_is_used_again(folder, daemon_of):
    Checkpointer(folder, job="saving").save(1, state_of(1)).wait(60)
    again = Checkpointer(folder, job="saving")
    assert again.save(2, state_of(2)).wait(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_memory.Arena, "create", None)
        third = Checkpointer(folder, job="saving")
        assert third.save(3, state_of(3)).wait(60)
    assert restored(folder) == 3


def test_state_that_grows_gets_new_memory_and_loses_nothing(checkpointer, folder):
    checkpointer.save(1, state_of(1), persist=False)
    assert checkpointer.save(2, state_of(2, 500_000)).wait(60)
    assert restored(folder, 500_000) == 2
    assert [found.step for found in list_checkpoints(folder)] == [1, 2]


def test_warm_memory_is_there_before_the_first_save(checkpointer, folder):
    checkpointer.prewarm(state_of(0, 300_000), wait=True)
    memory = checkpointer._memory._arena
    assert checkpointer.save(1, state_of(1, 300_000)).wait(60)
    assert checkpointer._memory._arena is memory
    assert restored(folder, 300_000) == 1


class HeldCopy:
    """Holds back the end of copies until it is let go."""

    def __init__(self, patch):
        self.go = threading.Event()
        begin = rank_memory.begin_copy

        def held(*arguments):
            end = begin(*arguments)

            def wait_and_end():
                assert self.go.wait(60)
                end()

            return wait_and_end

        patch.setattr(rank_memory, "begin_copy", held)


def test_overlapped_save_returns_before_the_copy_and_guard_waits(folder, monkeypatch):
    copy = HeldCopy(monkeypatch)
    checkpointer = Checkpointer(folder, job="saving", overlap=True)
    state = state_of(1)
    handle = checkpointer.save(1, state)
    assert not handle.staged
    assert not handle.done
    assert not handle.wait(0.01)
    threading.Timer(0.05, copy.go.set).start()
    with checkpointer.guard():
        assert handle.staged
        state["weights"].fill_(9)
    assert handle.wait(60)
    assert restored(folder) == 1


def test_change_during_an_overlapped_copy_is_found(folder, monkeypatch):
    copy = HeldCopy(monkeypatch)
    checkpointer = Checkpointer(folder, job="saving", overlap=True)
    state = state_of(1)
    handle = checkpointer.save(1, state)
    state["weights"].fill_(9)
    copy.go.set()
    with pytest.raises(StorageError, match=r"changed while it was being copied; put"):
        handle.wait(60)
    assert handle.done
    assert not handle.staged
    assert checkpointer.save(2, state_of(2)).wait(60)
    assert restored(folder) == 2
    assert [found.step for found in list_checkpoints(folder)] == [2]


def test_ranks_that_cannot_agree_keep_no_memory_from_the_next_save(
    checkpointer, monkeypatch
):
    assert checkpointer.save(1, state_of(1)).wait(60)

    def lose(value):
        raise RuntimeError("a rank is gone")

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer._job.group, "all_gather", lose)
        with pytest.raises(RuntimeError, match="a rank is gone"):
            checkpointer.save(2, state_of(2))
    assert checkpointer.save(3, state_of(3)).wait(60)


@pytest.mark.faults
def test_two_runs_of_one_name_are_told_apart(checkpointer, folder):
    script = textwrap.dedent(
        """
        import sys, torch
        from drivetrain_checkpoint import Checkpointer
        checkpointer = Checkpointer(sys.argv[1], job="saving")
        checkpointer.save(1, {"w": torch.ones(3)}).wait(60)
        print("saved", flush=True)
        sys.stdin.read()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout.readline() == b"saved\n"
        with pytest.raises(DaemonError, match="two jobs of one name") as caught:
            checkpointer.save(2, {"w": torch.ones(3)})
        assert str(other.pid) in str(caught.value)
        other.kill()
    # As soon as the other has ended, this is the job.
    assert checkpointer.save(2, {"w": torch.ones(3)}).wait(60)


def test_reader_beside_the_trainer_changes_nothing_for_it(folder):
    checkpointer = Checkpointer(folder, job="saving", keep=1)
    checkpointer.save(1, state_of(1), persist=False)
    reader = Checkpointer(folder, job="saving", keep=7, memory_s=0.1)
    state = state_of(0)
    assert reader.restore(state) == 1
    for step in (2, 3):
        assert checkpointer.save(step, state_of(step)).wait(60)
    checkpointer.stop_daemon()
    assert [found.step for found in list_checkpoints(folder)] == [3]


PREEMPTED = textwrap.dedent(
    """
    import signal, sys, time, torch
    from drivetrain_checkpoint import Checkpointer
    checkpointer = Checkpointer(sys.argv[1], job="saving")
    with checkpointer.on_preempt(then_exit=sys.argv[2] == "exit") as notice:
        state = {"weights": torch.full((1000,), 1.0), "position": 1}
        checkpointer.save(1, state, persist=False)
        print("saved", flush=True)
        while not notice.wait(0.05):
            pass
        state = {"weights": torch.full((1000,), 2.0), "position": 2}
        checkpointer.save(2, state)
        print(checkpointer.flush(notice.deadline_s), notice.signal.name)
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "go on"])
def test_preempted_trainer_leaves_its_memory_on_storage(folder, how):
    process = subprocess.Popen(
        [sys.executable, "-c", PREEMPTED, str(folder), how],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "saved\n"
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    steps = [found.step for found in list_checkpoints(folder)]
    if how == "exit":
        assert process.returncode == 128 + signal.SIGTERM
        assert steps == [1]
    else:
        assert said == "True SIGTERM\n"
        assert steps[-1] == 2


def test_handlers_of_before_come_back(checkpointer):
    before = signal.getsignal(signal.SIGUSR1)
    with checkpointer.on_preempt([signal.SIGUSR1], then_exit=False) as notice:
        assert signal.getsignal(signal.SIGUSR1) is not before
        os.kill(os.getpid(), signal.SIGUSR1)
        assert notice.wait(60)
        # What was begun then starts a daemon, and must not do so after the test.
        deadline = time.monotonic() + 60
        while notice.is_durable is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_daemon_that_nobody_needs_ends(folder, daemon_of):
    checkpointer = Checkpointer(folder, job="saving", memory_s=0.3)
    checkpointer.save(1, state_of(1)).wait(60)
    pid = daemon_of()
    checkpointer._job.client.close()
    ended = threading.Event()
    del checkpointer
    while is_alive(pid):
        ended.wait(0.02)
    assert restored(folder) == 1


def test_every_so_often_a_checkpoint_stays(folder):
    checkpointer = Checkpointer(folder, job="saving", keep=Keep(last=1, every=2))
    for step in range(1, 6):
        assert checkpointer.save(step, state_of(step)).wait(60)
    checkpointer.stop_daemon()
    assert [found.step for found in list_checkpoints(folder)] == [2, 4, 5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "hope"}, "policy must be one of"),
        ({"timeout_s": 0}, "timeout_s must be a finite number of more than 0"),
        ({"replicas": -1}, "replicas must be a whole number of at least 0"),
    ],
)
def test_arguments_out_of_range_are_refused(folder, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Checkpointer(folder, **options)


def test_replicas_on_one_node_are_refused(folder):
    checkpointer = Checkpointer(folder, replicas=1)
    with pytest.raises(ValueError, match="1 replicas need more than 1 nodes"):
        checkpointer.save(1, state_of(1))
    checkpointer.stop_daemon()


def test_ranks_that_a_job_no_longer_has_are_not_waited_for():
    daemon = Daemon(None)  # nobody comes
    first = Node(id="a", host="", port=0, domain="a", ranks=(0, 2))
    other = Node(id="b", host="", port=0, domain="b", ranks=(1,))
    absent = daemon._peers.absent_here
    # Before anybody has said who saves the job, nobody is known to be gone.
    assert absent("0" * 16, "old", {0, 1, 2}) == set()
    daemon._peers.join(NodeTable("a", (first, other)), "secret")
    daemon._trainers.begin("old", first.ranks)
    assert absent("0" * 16, "old", {0, 1, 2}) == set()
    fewer = dataclasses.replace(first, ranks=(0,))
    daemon._peers.join(NodeTable("a", (fewer, other)), "secret")
    daemon._trainers.begin("new", fewer.ranks)
    # Rank 1 is another node's, which is asked.
    assert absent("0" * 16, "old", {0, 1, 2}) == {0, 2}
    assert absent("0" * 16, "new", {0, 1}) == set()


def test_rank_that_never_comes_to_a_new_daemon_is_not_waited_for(monkeypatch):
    # Its trainer may wait, in a collective, for a rank that waits for memory here.
    registry = TrainerRegistry()
    registry.begin("run", (0, 1))
    assert registry.ended_ranks("run") == set()
    monkeypatch.setattr(trainer_registry, "_COME_S", 0.0)
    registry._trainers[0] = object()
    assert registry.ended_ranks("run") == {1}
    registry._trainers[1] = object()
    assert registry.ended_ranks("run") == set()
