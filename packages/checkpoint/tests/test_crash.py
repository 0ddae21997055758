"""Whoever is killed, and whenever: what was committed loads, what was published too."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from drivetrain_checkpoint import Checkpointer, StorageError, list_checkpoints, verify

TRAINER = textwrap.dedent(
    """
    import sys, torch
    from drivetrain_checkpoint import Checkpointer, list_checkpoints

    torch.set_num_threads(1)
    folder, size = sys.argv[1], int(sys.argv[2])
    weights = torch.zeros(size)
    checkpointer = Checkpointer(folder, job="crash")
    step = 0
    while True:
        step += 1
        weights.fill_(step)
        checkpointer.save(step, {"weights": weights, "position": step})
        print(step, flush=True)
    """
)


@pytest.fixture
def trainer(tmp_path):
    """Starts a process that saves without end; it is killed after the test."""
    started = []

    def start(size=200_000):
        command = [sys.executable, "-c", TRAINER, str(tmp_path), str(size)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def assert_whole(folder):
    """Every checkpoint of a folder is whole; the daemon may be deleting old ones."""
    for saved in list_checkpoints(folder):
        problems = verify(saved.url)
        assert problems == [] or saved not in list_checkpoints(folder)


def restored(folder, size=200_000):
    """The step that a new process restores; all of the state must be of that step."""
    state = {"weights": torch.empty(size), "position": 0}
    step = Checkpointer(folder, job="crash").restore(state)
    assert state["position"] == step
    assert torch.equal(state["weights"], torch.full((size,), float(step)))
    return step


@pytest.mark.slow
def test_trainer_that_is_killed_is_restored_from_memory(tmp_path, trainer):
    process = trainer()
    steps = [int(process.stdout.readline()) for _ in range(5)]
    process.kill()
    last = max([steps[-1], *map(int, process.stdout.read().split())])
    process.wait()
    # What `save` returned for is safe; one more may have been published after that.
    assert restored(tmp_path) in {last, last + 1}


@pytest.mark.slow
def test_save_of_a_killed_trainer_reaches_the_storage(tmp_path, trainer):
    process = trainer()
    step = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while not any(s.step >= step for s in list_checkpoints(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert_whole(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [0, 1, 2, *(pytest.param(n, marks=pytest.mark.faults) for n in range(3, 12))],
)
def test_kill_at_any_moment_tears_nothing(tmp_path, seed, daemon_of, trainer):
    moment = random.Random(seed)
    process = trainer()
    process.stdout.readline()
    victim = moment.choice(["trainer", "daemon", "both"])
    time.sleep(moment.uniform(0, 0.15))
    committed = {s.step for s in list_checkpoints(tmp_path)}
    if victim in {"daemon", "both"}:
        os.kill(daemon_of(), signal.SIGKILL)
    if victim in {"trainer", "both"}:
        process.kill()
    else:
        time.sleep(0.1)
        process.kill()
    process.wait()
    assert_whole(tmp_path)
    # On a loaded machine no new daemon has the memory yet when the trainer dies, too.
    if victim != "trainer" and not list_checkpoints(tmp_path):
        assert not committed
        return
    assert restored(tmp_path) >= max(committed, default=1)


def test_daemon_that_is_killed_is_replaced_and_armed_again(tmp_path, daemon_of):
    checkpointer = Checkpointer(tmp_path, job="crash")
    weights = torch.full((1000,), 1.0)
    checkpointer.save(1, {"weights": weights, "position": 1}).wait(60)
    first = daemon_of()
    os.kill(first, signal.SIGKILL)
    weights.fill_(2)
    handle = checkpointer.save(2, {"weights": weights, "position": 2})
    assert handle.wait(60)
    assert daemon_of() != first
    assert restored(tmp_path, 1000) == 2


def test_storage_that_fails_is_told_and_the_next_save_works(tmp_path):
    folder = tmp_path / "full"
    checkpointer = Checkpointer(folder, job="crash")
    weights = torch.full((1000,), 1.0)
    checkpointer.save(1, {"weights": weights, "position": 1}).wait(60)
    moved = tmp_path / "moved"
    folder.rename(moved)
    folder.write_text("no folder")
    weights.fill_(2)
    handle = checkpointer.save(2, {"weights": weights, "position": 2})
    with pytest.raises(StorageError, match=r"step 2 was not saved: .*cannot make"):
        handle.wait(60)
    assert handle.done
    assert not handle.durable
    folder.unlink()
    moved.rename(folder)
    weights.fill_(3)
    assert checkpointer.save(3, {"weights": weights, "position": 3}).wait(60)
    assert [s.step for s in list_checkpoints(folder)] == [1, 3]


PREWARMED = """
import sys, torch
from drivetrain_checkpoint import Checkpointer

checkpointer = Checkpointer(sys.argv[1], job="prewarmed")
checkpointer.prewarm({"weights": torch.zeros(50_000_000)})
checkpointer.stop_daemon(at_once=True)
"""


@pytest.mark.slow
def test_script_ends_well_while_its_memory_is_prewarmed(tmp_path):
    command = [sys.executable, "-c", PREWARMED, str(tmp_path)]
    for _ in range(3):
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
