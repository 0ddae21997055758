"""Processes are killed, stopped and slowed, and no other ones are."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from drivetrain_core import ProgramError
from drivetrain_health.faults import (
    FaultError,
    MissingPrivilegeError,
    TargetGoneError,
    kill,
    slow,
    stop,
)
from drivetrain_health.faults._slow import debt_after
from drivetrain_health.faults._target import Held

BUSY = "while True: pass"
# A parent with a child of its own and a grandchild; it prints their numbers.
FAMILY = """
import subprocess, sys, time
leaf = "import time; time.sleep(600)"
child = (
    "import subprocess, sys, time;"
    f"p = subprocess.Popen([sys.executable, '-S', '-c', {leaf!r}]);"
    "print(p.pid, flush=True); time.sleep(600)"
)
p = subprocess.Popen([sys.executable, "-S", "-c", child])
print(p.pid, flush=True)
time.sleep(600)
"""
FORKER = """
import os, time
while True:
    if os.fork() == 0:
        time.sleep(600)
    time.sleep(0.002)
"""


@pytest.fixture
def python():
    """Starts Python processes; none outlives the test."""
    started = []

    def start(code, **options):
        process = subprocess.Popen([sys.executable, "-S", "-c", code], **options)
        started.append(process)
        return process

    yield start
    for process in started:
        family = [process]
        if process.poll() is None:
            family += psutil.Process(process.pid).children(recursive=True)
        for one in family:
            one.kill()
        process.communicate()


def stat(pid):
    """Returns what the kernel says of a process, without its number and name."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ["gone"]


def state(pid):
    return stat(pid)[0]


def family_of(parent):
    return [parent.pid, *(int(parent.stdout.readline()) for _ in range(2))]


def gone(pid):
    return state(pid) in {"gone", "Z"}


def as_pid(process):
    return process.pid


def as_psutil(process):
    return psutil.Process(process.pid)


@pytest.mark.parametrize("view", [as_pid, as_psutil, lambda process: process])
def test_kill_returns_when_the_process_is_dead(python, view):
    process = python(BUSY)
    kill(view(process))
    assert process.poll() == -signal.SIGKILL


def test_kill_sends_the_signal_that_is_asked_for(python):
    process = python("import time; time.sleep(600)")
    kill(process, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_kill_of_a_tree_ends_all_of_it_and_nobody_else(python, number):
    other = python(BUSY)
    parent = python(FAMILY, stdout=subprocess.PIPE, text=True)
    pids = family_of(parent)
    kill(parent, number, tree=True)
    assert parent.wait() == -number
    end_s = time.monotonic() + 60
    while not all(map(gone, pids)) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert all(map(gone, pids))
    assert other.poll() is None


def test_kill_of_a_tree_ends_one_that_makes_children_all_the_time(python):
    parent = python(FORKER, start_new_session=True)
    end_s = time.monotonic() + 60
    while len(psutil.Process(parent.pid).children()) < 5:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    kill(parent, tree=True)
    parent.wait()
    sessions = [stat(pid)[3] for pid in psutil.pids() if not gone(pid)]
    assert str(parent.pid) not in sessions


def test_process_that_has_ended_is_not_hit_also_if_its_number_is_taken(python):
    process = python("")
    process.wait()
    with pytest.raises(TargetGoneError, match=f"process {process.pid} has ended"):
        kill(process)
    # A number that another process has by now: whoever holds the object knows better.
    other = python(BUSY)
    process.pid = other.pid
    with pytest.raises(TargetGoneError):
        kill(process)
    assert other.poll() is None


def test_zombie_is_gone(python):
    process = python("")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError, match="has ended"):
        kill(process.pid)


@pytest.mark.parametrize("pid", [0, -1, 1, os.getpid()], ids=["0", "-1", "1", "own"])
def test_fault_is_for_another_process(pid):
    for fault in (kill, lambda target: stop(target).__enter__()):
        with pytest.raises(ProgramError, match="another process than this one"):
            fault(pid)


def test_thread_cannot_be_held(python):
    code = "import threading, time; t = threading.Thread(target=time.sleep, args=[600])"
    process = python(f"{code}; t.start(); print(t.native_id, flush=True)", **PIPED)
    thread = int(process.stdout.readline())
    with pytest.raises(FaultError, match=f"process {thread} cannot be held"):
        kill(thread)


PIPED = {"stdout": subprocess.PIPE, "text": True}


def test_stopped_process_stands_still_and_goes_on_after_an_error(python):
    process = python(BUSY)
    with suppress(ZeroDivisionError), stop(process):
        assert state(process.pid) == "T"
        before = psutil.Process(process.pid).cpu_times().user
        time.sleep(0.1)
        assert psutil.Process(process.pid).cpu_times().user == before
        raise ZeroDivisionError
    assert state(process.pid) != "T"


def test_stop_of_a_tree_stops_all_of_it(python):
    parent = python(FAMILY, **PIPED)
    pids = family_of(parent)
    with stop(parent, tree=True):
        assert [state(pid) for pid in pids] == ["T"] * 3
    assert "T" not in [state(pid) for pid in pids]


def test_stopped_process_may_die_meanwhile(python):
    process = python(BUSY)
    with stop(process):
        kill(process)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [1, 3])
def test_slow_process_gets_its_share_of_a_core(python, num_threads):
    # Of Python's threads only one runs at a time, but for such work.
    code = f"""
import hashlib, threading
def burn():
    while True:
        hashlib.sha256(bytes(100_000))
for _ in range({num_threads - 1}):
    threading.Thread(target=burn, daemon=True).start()
burn()
"""
    process = python(code)
    with Held(process) as held:
        end_s = time.monotonic() + 60
        while held.cpu_time_s() < 0.05:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        with slow(process, share=0.2):
            began_s, used_s = time.monotonic(), held.cpu_time_s()
            time.sleep(1.0)
            used_s = held.cpu_time_s() - used_s
            lasted_s = time.monotonic() - began_s
        assert 0.02 * lasted_s < used_s < 0.35 * lasted_s
        assert state(process.pid) != "T"


def test_slow_process_goes_on_after_an_error(python):
    process = python(BUSY)
    with suppress(ZeroDivisionError), slow(process, share=0.01):
        time.sleep(0.1)
        raise ZeroDivisionError
    assert state(process.pid) != "T"
    with slow(process, share=0.01):
        kill(process)
    process.wait()


@pytest.mark.parametrize("share", [0, -1, float("nan")])
def test_slow_says_that_a_share_is_wrong(python, share):
    with pytest.raises(ProgramError, match="must be over 0"), slow(2, share):
        pass


def test_debt_is_paid_by_waiting_and_credit_is_small():
    debt_s = debt_after(0.0, used_s=1.0, elapsed_s=0.0, share=0.1)
    assert debt_s == 1.0
    assert debt_after(debt_s, used_s=0.0, elapsed_s=10.0, share=0.1) == 0.0
    assert debt_after(0.0, used_s=0.0, elapsed_s=1e6, share=0.5) == pytest.approx(-0.05)


@pytest.mark.skipif(os.getuid() != 0, reason="another user's process needs root")
def test_process_of_another_user_is_left_alone(python):
    process = python(BUSY)
    code = f"""
import os
os.setuid(65534)
from drivetrain_health.faults import MissingPrivilegeError, kill
try:
    kill({process.pid})
except MissingPrivilegeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    if "another user's" not in done.stdout:
        # The interpreter may lie where others cannot read it.
        assert "Permission" in done.stderr or "ModuleNotFound" in done.stderr
    assert process.poll() is None
    assert issubclass(MissingPrivilegeError, PermissionError)
