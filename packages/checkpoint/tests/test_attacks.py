"""What a user may do that nobody meant, and what becomes of it."""

import contextlib
import fcntl
import math
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drivetrain_checkpoint import (
    Checkpointer,
    DaemonError,
    StorageError,
    list_checkpoints,
)
from drivetrain_checkpoint._peers.connection import address_of, own_folder
from drivetrain_core import CheckpointError
from drivetrain_testing import run_ranks


def value_of(value, size=1000):
    return {"x": torch.full((size,), float(value))}


def restored(folder, *, job="attack", size=1000):
    state = value_of(-1, size)
    step = Checkpointer(folder, job=job).restore(state)
    assert torch.equal(state["x"], value_of(step, size)["x"])
    return step


@pytest.fixture
def checkpointer(tmp_path):
    return Checkpointer(tmp_path / "run", job="attack")


def test_clock_that_is_set_back_makes_no_save_older(tmp_path, monkeypatch):
    first = Checkpointer(tmp_path, job="attack", keep=2)
    assert first.save(1, value_of(1)).wait(60)
    first.stop_daemon()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
    again = Checkpointer(tmp_path, job="attack", keep=2)
    for step in (2, 3, 4):
        assert again.save(step, value_of(step)).wait(60)
    again.stop_daemon()
    assert [found.step for found in list_checkpoints(tmp_path)] == [3, 4]
    assert restored(tmp_path) == 4


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"__metadata__": torch.ones(2)}, ValueError, "a use of its own for the name"),
        ({0: torch.ones(2)}, TypeError, "names in the state must be strings, got 0"),
        ([torch.ones(2)], TypeError, "must be a mapping from names, got list"),
    ],
)
def test_state_that_could_not_come_back_is_refused(checkpointer, state, error, message):
    with pytest.raises(error, match=message):
        checkpointer.save(1, state)
    assert checkpointer.save(2, value_of(2)).wait(60)


def test_step_that_no_message_can_carry_is_refused(checkpointer):
    with pytest.raises(ValueError, match="less than 2\\*\\*62, got 12089258"):
        checkpointer.save(2**80, value_of(1))
    assert checkpointer.save(2**62 - 1, value_of(1)).wait(60)


@pytest.mark.parametrize("step", [1.5, True, "3", None])
def test_step_that_is_no_number_is_refused(checkpointer, step):
    with pytest.raises(TypeError, match="step must be a whole number"):
        checkpointer.save(step, value_of(1))


def test_second_checkpointer_of_a_process_takes_the_job_over(tmp_path):
    one, two = (Checkpointer(tmp_path, job="attack") for _ in range(2))
    assert one.save(1, value_of(1)).wait(60)
    assert two.save(2, value_of(2, 100_000)).wait(60)
    with pytest.raises(DaemonError, match="another Checkpointer of process"):
        one.save(3, value_of(3))
    assert two.save(4, value_of(4)).wait(60)
    assert restored(tmp_path) == 4


@pytest.mark.faults
def test_script_that_ends_waits_for_an_overlapped_copy(tmp_path):
    script = textwrap.dedent(
        """
        import sys, torch
        from drivetrain_checkpoint import Checkpointer
        checkpointer = Checkpointer(sys.argv[1], job="attack", overlap=True)
        checkpointer.save(7, {"x": torch.full((20_000_000,), 7.0)})
        """
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert restored(tmp_path, size=20_000_000) == 7


def test_link_to_a_checkpoint_is_deleted_and_not_what_it_leads_to(tmp_path):
    one = Checkpointer(tmp_path / "one", job="attack")
    assert one.save(1, value_of(1)).wait(60)
    (found,) = list_checkpoints(tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / Path(found.url).name).symlink_to(found.url)
    two = Checkpointer(tmp_path / "two", job="attack", keep=1)
    for step in (2, 3):
        assert two.save(step, value_of(step)).wait(60)
    two.stop_daemon()
    assert [c.step for c in list_checkpoints(tmp_path / "two")] == [3]
    assert [c.step for c in list_checkpoints(tmp_path / "one")] == [1]


def test_job_goes_on_from_its_own_checkpoints(tmp_path):
    for job, step in (("a", 5), ("b", 100)):
        checkpointer = Checkpointer(tmp_path, job=job)
        assert checkpointer.save(step, value_of(step)).wait(60)
        checkpointer.stop_daemon()
    assert restored(tmp_path, job="a") == 5
    assert Checkpointer(tmp_path, job="a").latest() == 5
    with pytest.raises(CheckpointError, match="'c' has none, 'a' and 'b' have"):
        restored(tmp_path, job="c")


def test_daemon_whose_socket_was_deleted_listens_again(checkpointer, tmp_path):
    checkpointer.save(1, value_of(1), persist=False)
    path = checkpointer._job.client._path
    path.unlink()
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert restored(tmp_path / "run") == 1


@pytest.mark.parametrize("who", ["same", "other"])
def test_daemon_outlives_its_folder(checkpointer, tmp_path, runtime, daemon_of, who):
    checkpointer.save(1, value_of(1), persist=False)
    first = daemon_of()
    for step in (2, 3):
        shutil.rmtree(checkpointer._job.client._path.parent)
        if who == "same":
            checkpointer._job.client.close()
            checkpointer.save(step, value_of(step), persist=False)
        # It asks at once: it finds the daemon that lives, with its memory.
        assert restored(tmp_path / "run") == (step if who == "same" else 1)
        assert daemon_of() == first
    assert checkpointer.save(4, value_of(4)).wait(60)
    assert restored(tmp_path / "run") == 4


@pytest.mark.parametrize("held_s", [0.5, pytest.param(4.0, marks=pytest.mark.slow)])
def test_daemon_that_was_killed_and_has_not_ended_is_waited_for(checkpointer, held_s):
    # Its memory may take its time; the socket is there, and nobody listens.
    path = checkpointer._job.client._path
    own_folder(path.parent)
    with socket.socket(socket.AF_UNIX) as left, address_of(path) as address:
        left.bind(address)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        end = threading.Timer(held_s, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        end.start()
        assert checkpointer.save(1, value_of(1)).wait(60)
        end.join()


@pytest.mark.slow
def test_daemon_without_folder_that_cannot_answer_is_told(
    checkpointer, daemon_of, freeze, monkeypatch
):
    checkpointer.save(1, value_of(1), persist=False)
    monkeypatch.setattr("drivetrain_checkpoint._daemon.client._START_S", 15.0)
    monkeypatch.setattr("drivetrain_checkpoint._daemon.client._ATTEMPTS", 1)
    first = daemon_of()
    freeze(first)
    try:
        shutil.rmtree(checkpointer._job.client._path.parent)
        checkpointer._job.client.close()
        with pytest.raises(DaemonError, match="another daemon has the job"):
            checkpointer.save(2, value_of(2))
        assert daemon_of() == first
    finally:
        os.kill(first, signal.SIGCONT)
    assert checkpointer.save(3, value_of(3)).wait(60)
    assert daemon_of() == first


def test_forked_process_needs_a_checkpointer_of_its_own(checkpointer):
    assert checkpointer.save(1, value_of(1)).wait(60)
    if (pid := os.fork()) == 0:
        try:
            checkpointer.save(2, value_of(2))
        except DaemonError as error:
            os._exit(7 if "forked from" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert checkpointer.save(3, value_of(3)).wait(60)


def test_dead_trainer_whose_child_lives_does_not_keep_the_job(tmp_path):
    reader, writer = os.pipe()
    if (trainer := os.fork()) == 0:
        checkpointer = Checkpointer(tmp_path, job="attack")
        checkpointer.save(1, value_of(1)).wait(60)
        if os.fork() == 0:  # a worker that outlives the trainer
            os.write(writer, str(os.getpid()).encode())
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    worker = int(os.read(reader, 20))
    os.waitpid(trainer, 0)
    try:
        assert Checkpointer(tmp_path, job="attack").save(2, value_of(2)).wait(60)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


def test_handle_after_the_daemon_was_stopped_starts_no_other(checkpointer):
    handle = checkpointer.save(1, value_of(1))
    checkpointer.stop_daemon()
    assert handle.wait(60)
    assert not checkpointer.has_daemon()


def test_folder_in_place_of_a_manifest_is_named(checkpointer, tmp_path):
    assert checkpointer.save(2, value_of(2)).wait(60)
    name = "step-0000000001-ffffffffffffffff"
    (tmp_path / "run" / name / "manifest.json").mkdir(parents=True)
    assert [found.step for found in list_checkpoints(tmp_path / "run")] == [2]
    assert checkpointer.latest() == 2


@pytest.mark.parametrize("place", ["s3://", "memory:///", "", "memory://run"])
def test_url_of_no_place_is_refused(place):
    with pytest.raises(ValueError, match=r"names no place|is empty|of one process"):
        Checkpointer(place)


def test_stopped_daemon_keeps_nobody_for_ever(
    checkpointer, daemon_of, freeze, monkeypatch
):
    handle = checkpointer.save(1, value_of(1))
    assert handle.wait(60)
    pid = daemon_of()
    monkeypatch.setattr("drivetrain_checkpoint._daemon.client._ANSWER_S", 0.3)
    freeze(pid)
    try:
        with pytest.raises(CheckpointError, match=r"has not answered for 0\.3 s"):
            checkpointer.save(2, value_of(2))
        assert handle.durable
    finally:
        os.kill(pid, signal.SIGCONT)


def test_path_that_leads_nowhere_is_told(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for place in ("~no-such-user/run", loop):
        with pytest.raises(StorageError, match="cannot find"):
            Checkpointer(place)


def test_wait_without_end_may_be_infinite(tmp_path):
    checkpointer = Checkpointer(tmp_path / "run", job="attack", overlap=True)
    assert checkpointer.save(1, value_of(1)).wait(math.inf)
    checkpointer.save(2, value_of(2))
    assert checkpointer.flush(math.inf)


def test_handle_asks_the_daemon_of_its_save(checkpointer, tmp_path, monkeypatch):
    with monkeypatch.context() as changed:
        assert checkpointer.save(1, value_of(1)).wait(60)
        changed.setenv("XDG_RUNTIME_DIR", str(tmp_path / "another"))
        assert checkpointer.save(2, value_of(2), persist=False).wait(60)
    assert not (tmp_path / "another").exists()


def test_run_whose_first_save_failed_began_when_the_next_was_made(
    checkpointer, tmp_path, monkeypatch
):
    assert checkpointer.save(1, value_of(1)).wait(60)
    checkpointer.stop_daemon()
    again = Checkpointer(tmp_path / "run", job="attack")

    def refuse():
        raise DaemonError("another process saves this job")

    with monkeypatch.context() as patch:
        patch.setattr(again._memory, "saved_at_ns", refuse)
        with pytest.raises(DaemonError, match="another process"):
            again.save(2, value_of(2))
    assert again.save(2, value_of(2)).wait(60)


def restore_what_each_wants(folder, wanted):
    checkpointer = Checkpointer(folder, job="attack")
    for step in (1, 2):
        assert checkpointer.save(step, value_of(step)).wait(60)
    assert checkpointer.save(3, value_of(3), under="best").wait(60)
    state = value_of(-1)
    with pytest.raises(CheckpointError, match="restore different checkpoints") as found:
        checkpointer.restore(state, **wanted[dist.get_rank()])
    return str(found.value), float(state["x"].sum())


@pytest.mark.parametrize("other", [{"step": 1}, {"under": "best"}], ids=str)
def test_ranks_that_restore_different_checkpoints_are_told(tmp_path, other):
    wanted = [other, {}]
    told = run_ranks(restore_what_each_wants, 2, str(tmp_path / "run"), wanted)
    assert told[0] == told[1]
    assert told[0][1] == -1000


def save_where_one_rank_has_no_daemon(folder):
    rank = dist.get_rank()
    runtime = Path(folder, f"runtime-{rank}")
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    checkpointer = Checkpointer(Path(folder, "run"), job="attack")
    (home,) = runtime.iterdir()
    if rank == 1:
        home.rmdir()
        home.touch()
    told = []
    for call in (checkpointer.save, lambda _, state: checkpointer.restore(state)):
        with pytest.raises(CheckpointError) as found:
            call(1, value_of(1))
        told.append(str(found.value))
    # What a loop does that goes on without a checkpoint.
    sums = torch.ones(3)
    dist.all_reduce(sums)
    if rank == 1:
        home.unlink()
    dist.barrier()
    done = checkpointer.save(2, value_of(2)).wait(60)
    checkpointer.stop_daemon()
    return told, sums.tolist(), done


def test_rank_without_a_daemon_keeps_no_other_waiting(tmp_path):
    found = run_ranks(save_where_one_rank_has_no_daemon, 2, str(tmp_path))
    for told, sums, done in found:
        assert all("cannot be made" in text for text in told)
        assert sums == [2.0] * 3
        assert done


def persist_on_one_rank(folder, which):
    checkpointer = Checkpointer(folder, job="attack")
    handle = checkpointer.save(1, value_of(1), persist=dist.get_rank() == which)
    return handle.wait(30)


@pytest.mark.parametrize("which", [0, 1])
def test_save_that_one_rank_wants_on_storage_gets_there(tmp_path, which):
    assert run_ranks(persist_on_one_rank, 2, str(tmp_path / "run"), which) == [True] * 2


def keep_as_many_as_the_rank_says(folder):
    checkpointer = Checkpointer(folder, job="attack", keep=dist.get_rank() + 2)
    with pytest.raises(ValueError, match=r"rank 1 with .*give all ranks the same keep"):
        checkpointer.save(1, value_of(1))


@pytest.mark.slow
def test_ranks_that_keep_different_checkpoints_are_told(tmp_path):
    run_ranks(keep_as_many_as_the_rank_says, 2, str(tmp_path))


def test_memory_that_cannot_be_asked_for_is_told(tmp_path, checkpointer, caplog):
    assert checkpointer.save(1, value_of(1)).wait(60)
    checkpointer.save(2, value_of(2), persist=False)
    other = Checkpointer(tmp_path / "run", job="attack")
    other.has_daemon()
    free, used = resource.getrlimit(resource.RLIMIT_NOFILE), []
    state = value_of(-1)
    try:
        other.restore(state, 2)  # its way to the daemon stands
        limit = 8 + max(int(fd.name) for fd in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, free[1]))
        with contextlib.suppress(OSError):
            while len(used) < limit:
                used.append(os.open("/dev/null", os.O_RDONLY))
        os.close(used.pop())
        with pytest.raises(OSError, match=r"descriptor|Too many open files"):
            other.restore(state)
    finally:
        for fd in used:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, free)
    assert other.restore(state) == 2
