"""Runtime folders of its own for every test, so that no daemon outlives it."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from drivetrain_testing import is_alive

# The helpers of the tests of faults are a package, `faults`.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory, monkeypatch):
    """Gives sockets a folder of their own, and ends the daemons that listen there."""
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield folder
    torch.set_num_threads(num_threads)
    # One that is being started forks: its child may not have been there at first.
    while pids := daemons(folder):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def daemons(folder):
    """The processes of daemons whose sockets lie in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().split(b"\0")
            if b"drivetrain_checkpoint._daemon" in line and any(
                str(folder).encode() in word for word in line
            ):
                found.append(int(process.name))
    return found


@pytest.fixture
def daemon_of(runtime):
    """Returns the process of the one daemon that runs, when there is one."""

    def find(timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            pids = [p for p in daemons(runtime) if is_alive(p)]
            if len(pids) == 1:
                return pids[0]
            time.sleep(0.01)
        raise AssertionError(daemons(runtime))

    return find


@pytest.fixture
def freeze():
    """Returns what stops a process until the test ends.

    The kernel wakes one thread of the process for the signal: the others may run on
    until it has had a processor, so that the stop has to be waited for.
    """
    stopped = []

    def stop(pid, timeout_s=60.0):
        stopped.append(pid)
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + timeout_s
        while any(state != "T" for state in states(pid)):
            assert time.monotonic() < deadline, list(states(pid))
            time.sleep(0.005)

    yield stop
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def states(pid):
    """The states of the threads of a process, as `/proc` calls them."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            yield (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]


def pytest_collection_modifyitems(config, items):
    """Leaves the long forms out unless `-m` asks for them."""
    if "faults" in (config.getoption("markexpr", default="") or ""):
        return
    long = [item for item in items if item.get_closest_marker("faults")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
