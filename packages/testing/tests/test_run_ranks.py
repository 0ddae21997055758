"""`run_ranks` brings back results and leaves nothing behind.

Most of these run a built-in function, so that the rank imports no torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from drivetrain_core._processes import child_process
from drivetrain_testing import (
    RankError,
    is_alive,
    run_ranks,
)


def test_run_ranks_returns_results_by_rank():
    place = "[__import__('os').environ[n] for n in ('RANK', 'WORLD_SIZE', 'X')]"
    results = run_ranks(eval, 3, place, process_group=False, env={"X": "x"})
    assert results == [[str(rank), "3", "x"] for rank in range(3)]


def test_run_ranks_gives_closures_and_their_process_group():
    offset = torch.tensor([10.0])

    def total():
        tensor = offset + dist.get_rank()
        dist.all_reduce(tensor)
        return tensor

    assert [t.item() for t in run_ranks(total, 2)] == [21.0, 21.0]


@pytest.mark.slow
def test_run_ranks_shows_the_rank_that_failed_and_ends_the_others():
    program = """
import os, time
if os.environ["RANK"] == "1":
    raise KeyError("the culprit")
time.sleep(600)
"""
    with pytest.raises(RankError, match="rank 1 of 2 failed") as caught:
        run_ranks(exec, 2, program, process_group=False, timeout_s=300)
    assert caught.value.rank == 1
    assert "KeyError: 'the culprit'" in str(caught.value)
    assert "Traceback" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (
            os.system,
            "echo last words; kill -SEGV $PPID",
            "ended by SIGSEGV.*last words",
        ),
        (os._exit, 7, "ended with exit code 7"),
        (os._exit, 0, "ended with exit code 0 and no result"),
    ],
    ids=["signal", "code", "early"],
)
def test_run_ranks_tells_how_a_rank_died_and_what_it_wrote(function, argument, message):
    with pytest.raises(RankError, match=f"(?s)rank 0 of 1 {message}"):
        run_ranks(function, 1, argument, process_group=False)


def hang(path):
    """Returns a command that tells its parent's and its own number, and hangs."""
    return (
        f"echo hanging; echo $PPID $$ > {path}.part; mv {path}.part {path}; sleep 600"
    )


@pytest.mark.slow
def test_run_ranks_ends_what_hangs_with_its_children(tmp_path):
    path = tmp_path / "pids"
    with pytest.raises(RankError, match="the time was up while rank 0 of 1") as caught:
        run_ranks(os.system, 1, hang(path), process_group=False, timeout_s=3)
    assert "hanging" in str(caught.value)
    for pid in path.read_text().split():
        assert not is_alive(int(pid))


@pytest.mark.slow
def test_ranks_end_when_their_caller_is_killed(tmp_path):
    path = tmp_path / "pids"
    code = f"""
import os
from drivetrain_testing import run_ranks
run_ranks(os.system, 1, {hang(path)!r}, process_group=False, timeout_s=600)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    caller = subprocess.Popen([sys.executable, "-c", code], env=env)
    try:
        wait_until(path.exists)
    finally:
        caller.kill()
        caller.wait()
    rank, child = map(int, path.read_text().split())
    wait_until(lambda: not is_alive(rank) and not is_alive(child))


def wait_until(condition, timeout_s=60.0):
    """Waits for what no event tells: another process's file, or its end."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_result_that_cannot_cross_is_an_error():
    with pytest.raises(RankError, match="cannot pickle"):
        run_ranks(eval, 1, "(i for i in range(3))", process_group=False)


def servers():
    """Returns the processes from which ranks of this process are forked."""
    return set(child_process.servers())


@pytest.mark.slow
def test_ranks_end_with_what_forks_them_and_the_next_ones_have_another():
    run_ranks(pow, 1, 3, 4, process_group=False)
    before = servers()
    program = "import os; os.kill(os.getppid(), 9); import time; time.sleep(600)"
    with pytest.raises(RankError, match="rank 0 of 1 ended by SIGKILL"):
        run_ranks(exec, 1, program, process_group=False, timeout_s=60)
    assert run_ranks(pow, 1, 3, 4, process_group=False) == [81]
    assert servers() != before


def test_hashes_differ_between_ranks():
    first, second = run_ranks(eval, 2, "hash('a')", process_group=False)
    assert first != second
