"""Processes that are forked from a server: like new ones, and gone with their caller."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from drivetrain_core._processes import child_process
from drivetrain_core._processes.child_process import ForkedProcess, NewProcess, servers
from drivetrain_core._processes.fork_server import MARKER
from drivetrain_search.process import spawn
from drivetrain_search.process.spawn import sweep
from drivetrain_search.process.trial import Failure, TrialRunner
from drivetrain_testing import is_alive

PROGRAM = """
import json, os, socket, sys, threading

def main(argv):
    *arguments, channel, parent = argv
    import numpy, random
    told = {
        "arguments": arguments,
        "argv": sys.argv[1:],
        "stdin": sys.stdin.read(),
        "env": os.environ.get("TOLD"),
        "late": os.environ.get("LATE"),
        "directory": os.getcwd(),
        "parent": os.getppid() == int(parent),
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "threads": len(os.listdir("/proc/self/task")),
        "has_colorsys": "colorsys" in sys.modules,
        "draws": [numpy.random.rand(), random.random()],
    }
    print("said to the log")
    line = socket.socket(fileno=int(channel))
    line.sendall(json.dumps(told).encode())
    if line.recv(8) == b"daemon":
        if os.fork() == 0:
            os.setsid()
            line.sendall(str(os.getpid()).encode())
            import time
            time.sleep(600)
        os._exit(0)
    return 7
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module with a `main`, found through this process's path."""
    (tmp_path / "a_child_program.py").write_text(
        f"{PROGRAM}\nif __name__ == '__main__':\n    sys.exit(main(sys.argv[1:]))\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    return "a_child_program"


@pytest.fixture
def start(module, tmp_path):
    """Starts the program in either way, and reaps it in the end."""
    started = []

    def make(kind, *, options=None, **variables):
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        path = os.pathsep.join(sys.path)
        env = {**os.environ, "PYTHONPATH": path, **variables}
        if kind is ForkedProcess:
            options = {"imported": ("numpy",), **(options or {})}
        with (tmp_path / "log").open("wb") as log, theirs:
            child = kind(
                module,
                ["a", "b"],
                env=env,
                output=log.fileno(),
                channel=theirs,
                **(options or {}),
            )
        started.append((child, ours))
        return child, ours

    yield make
    for child, ours in started:
        child.kill()
        child.reap()
        ours.close()


@pytest.mark.parametrize("kind", [NewProcess, ForkedProcess])
def test_child_has_what_it_was_given(start, kind, tmp_path):
    child, line = start(kind, TOLD="this", LATE="x" * 100_000)
    told = json.loads(receive(line))
    assert told["arguments"] == ["a", "b"]
    assert told["argv"][:2] == ["a", "b"]
    assert told["stdin"] == ""
    assert (told["env"], len(told["late"])) == ("this", 100_000)
    assert told["directory"] == str(tmp_path)
    assert told["parent"]
    assert told["pid"] == told["group"] == child.pid
    line.sendall(b"end")
    assert child.wait(60) == 7
    assert child.wait() == 7
    assert (tmp_path / "log").read_text() == "said to the log\n"


def receive(line):
    """Returns one JSON text, which may come in parts."""
    text = b""
    while True:
        text += line.recv(1 << 20)
        if text.endswith(b"}"):
            return text


def test_forks_draw_numbers_of_their_own_in_one_thread(start):
    (_, first), (_, second) = start(ForkedProcess), start(ForkedProcess)
    one, other = json.loads(receive(first)), json.loads(receive(second))
    assert one["threads"] == other["threads"] == 1
    for mine, its in zip(one["draws"], other["draws"], strict=True):
        assert mine != its


HELD = """
import os, signal
from pathlib import Path

def killpg(group, how):
    # As if the kernel did not let go of the first one that is killed.
    if Path("{seen}").exists():
        return real(group, how)
    Path("{seen}").touch()

if "fork_server" in Path("/proc/self/cmdline").read_text():
    real, os.killpg = os.killpg, killpg
"""


def test_process_that_the_kernel_holds_keeps_neither_caller_nor_server(
    start, module, tmp_path
):
    (tmp_path / "a_holding_module.py").write_text(HELD.format(seen=tmp_path / "seen"))
    options = {"imported": ("numpy", "a_holding_module")}
    held, line = start(ForkedProcess, options=options)
    receive(line)
    held.kill()
    with pytest.raises(TimeoutError):
        held.reap(0.2)
    assert is_alive(held.pid)
    other, second = start(ForkedProcess, options=options)
    receive(second)
    second.sendall(b"end")
    assert other.wait(60) == 7
    # It goes at last, with the server, which ends as it should.
    key, server = next(
        (k, s) for k, s in child_process._servers.items() if s is held._server
    )
    child_process._forget(key)
    assert server.process.returncode == 0
    assert held.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("kind", [NewProcess, ForkedProcess])
def test_process_that_still_runs_is_not_reaped(start, kind):
    child, line = start(kind)
    receive(line)
    with pytest.raises(TimeoutError):
        child.reap(0.05)
    line.sendall(b"end")
    assert child.wait(60) == 7


def test_sweep_finds_what_a_fork_left_behind(start):
    marker = "c" * 32
    child, line = start(ForkedProcess, **{MARKER: marker})
    receive(line)
    line.sendall(b"daemon")
    daemon = int(line.recv(32))
    assert child.wait(60) == 0
    child.kill()
    assert is_alive(daemon)
    assert sweep(marker) == [daemon]
    wait_until(lambda: not is_alive(daemon))


def test_fork_that_runs_still_is_told_apart_and_killed(start):
    child, line = start(ForkedProcess)
    receive(line)
    with pytest.raises(TimeoutError):
        child.wait(0.01)
    child.kill()
    child.kill()
    assert child.wait(60) == -signal.SIGKILL


def test_server_serves_again_and_ends_when_nothing_is_asked(start, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # a server of this test's own
    others = set(servers())
    child, _ = start(ForkedProcess, options={"idle_s": 0.05})
    (server,) = set(servers()) - others
    again, _ = start(ForkedProcess, options={"idle_s": 0.05})
    assert set(servers()) - others == {server}
    for one in (child, again):
        one.kill()
        one.reap()
        monkeypatch.setattr(one, "reap", lambda: None)
    wait_until(lambda: server not in servers())
    assert not is_alive(server)


def test_fork_has_what_it_wants_more_and_so_do_those_after_it(start):
    more = {"more": ["colorsys", "a_module_that_is_nowhere"]}
    _, line = start(ForkedProcess, options=more)
    _, again = start(ForkedProcess)
    for one in (line, again):
        assert json.loads(receive(one))["has_colorsys"]


# What torch does where a module asks, as it is imported, whether there is a GPU.
STARTS_THE_GPU = """
import os, torch
torch.accelerator.current_accelerator = lambda: torch.device("cuda")
def lose(): torch.cuda._is_in_bad_fork = lambda: True
os.register_at_fork(after_in_child=lose)
"""


@pytest.mark.slow
def test_fork_that_could_not_use_the_gpu_starts_anew(start, tmp_path):
    (tmp_path / "starts_the_gpu.py").write_text(STARTS_THE_GPU)
    options = {"imported": ("starts_the_gpu", "colorsys")}
    child, line = start(ForkedProcess, options=options, TOLD="this")
    told = json.loads(receive(line))
    assert not told["has_colorsys"]
    assert told["arguments"] == ["a", "b"]
    assert (told["env"], told["directory"]) == ("this", str(tmp_path))
    assert told["parent"]
    assert told["pid"] == told["group"] == child.pid
    line.sendall(b"end")
    assert child.wait(60) == 7


def test_large_environment_reaches_a_fork(start):
    _, line = start(ForkedProcess, LATE="y" * 500_000)
    assert json.loads(receive(line))["late"] == "y" * 500_000


def test_forks_end_with_their_caller(tmp_path, module):
    code = f"""
import os, socket, sys
from drivetrain_core._processes.child_process import ForkedProcess
sys.path.append({str(tmp_path)!r})
ours, theirs = socket.socketpair()
child = ForkedProcess({module!r}, [], env=dict(os.environ), output=2, channel=theirs,
                      imported=())
ours.recv(1)
print(child.pid, flush=True)
input()
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as caller:
        pid = int(caller.stdout.readline())
        assert is_alive(pid)
        caller.kill()
    wait_until(lambda: not is_alive(pid))


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A module that takes longer to import than a server may."""
    (tmp_path / "a_slow_module.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(child_process, "_START_S", 0.3)
    return "a_slow_module"


def test_server_that_does_not_start_in_time_is_ended(slow, tmp_path):
    others = set(servers())
    with (
        (tmp_path / "log").open("wb") as log,
        pytest.raises(TimeoutError, match=r"did not start within 0\.3 s"),
    ):
        ForkedProcess("json", [], env={}, output=log.fileno(), imported=(slow,))
    (server,) = set(servers()) - others
    wait_until(lambda: not is_alive(server))


def test_trial_whose_server_does_not_start_is_one_that_hangs(
    slow, tmp_path, monkeypatch
):
    monkeypatch.setattr(spawn, "_IMPORTED", (slow,))
    runner = TrialRunner(
        payload=tmp_path, folder=tmp_path, world_size=1, on_cpu=True, timeout_s=60.0
    )
    with (
        pytest.raises(Failure, match="HANG: what forks processes"),
        runner.open((), baseline=True),
    ):
        pass


def test_server_that_fails_tells_its_exit_code(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        child = ForkedProcess(
            "json", [], env={}, output=log.fileno(), imported=("no_such_module",)
        )
    assert (child.pid, child.wait(60)) == (0, 1)
    child.kill()
    child.reap()


def test_missing_module_is_told_in_the_log(tmp_path, monkeypatch):
    with (tmp_path / "log").open("wb") as log:
        child = ForkedProcess(
            "no_module_of_this_name", [], env={}, output=log.fileno(), imported=()
        )
        assert child.wait(60) == 1
        child.kill()
        child.reap()
    assert "no_module_of_this_name" in (tmp_path / "log").read_text()


def wait_until(condition, timeout_s=60.0):
    """Waits for what no event tells: another process's end."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
