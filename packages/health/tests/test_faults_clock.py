"""Processes have a wall clock that is off, and wait as long as they should."""

import platform
import subprocess
import sys
import time

import pytest

from drivetrain_core import ProgramError
from drivetrain_health.faults import (
    FaultError,
    MissingPrivilegeError,
    missing_because,
    skew_clock,
)

WHY = missing_because("clock")
needs_compiler = pytest.mark.skipif(WHY is not None, reason=f"no clock faults: {WHY}")


def ask(code, environment):
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CLOCKS = """
import datetime, time
print(time.time())
print(time.time_ns() / 1e9)
print(time.clock_gettime(time.CLOCK_REALTIME))
print(datetime.datetime.now(datetime.timezone.utc).timestamp())
import ctypes
libc = ctypes.CDLL(None)
libc.time.restype = ctypes.c_long
print(libc.time(None))
value = (ctypes.c_long * 2)()
libc.gettimeofday(value, None)
print(value[0])
libc.timespec_get(value, 1)
print(value[0])
libc.syscall(228, 0, value)
print(value[0])
"""


@needs_compiler
@pytest.mark.parametrize("seconds", [3600, -3600, 0.0, 86400 * 365])
def test_every_wall_clock_is_off_by_as_much(seconds):
    told = ask(CLOCKS, skew_clock(seconds)).split()
    if platform.machine() != "x86_64":
        told.pop()  # the call has another number
    now_s = time.time()
    for value in told:
        assert float(value) == pytest.approx(now_s + seconds, abs=15)


@needs_compiler
def test_monotonic_clock_and_sleeps_are_true():
    code = """
import time
print(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
began = time.monotonic()
time.sleep(0.1)
print(time.monotonic() - began)
"""
    before_s = time.monotonic()
    monotonic_s, boot_s, slept_s = map(float, ask(code, skew_clock(7200)).split())
    assert before_s <= monotonic_s <= time.monotonic()
    assert boot_s <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0.1 <= slept_s < 60


WAITS = """
import ctypes, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def deadline(after_s):
    at = time.clock_gettime_ns(time.CLOCK_REALTIME) + int(after_s * 1e9)
    return ctypes.byref((ctypes.c_long * 2)(at // 10**9, at % 10**9))

def timed(wait):
    began = time.monotonic()
    wait()
    print(time.monotonic() - began)

semaphore, mutex, condition = (ctypes.create_string_buffer(256) for _ in range(3))
libc.sem_init(semaphore, 0, 0)
libc.pthread_mutex_lock(mutex)
timed(lambda: libc.sem_timedwait(semaphore, deadline(0.2)))
timed(lambda: libc.pthread_mutex_timedlock(mutex, deadline(0.2)))
timed(lambda: libc.pthread_cond_timedwait(condition, mutex, deadline(0.2)))
timed(lambda: libc.clock_nanosleep(0, 1, deadline(0.2), None))
word = ctypes.c_int(0)
# FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME
wait = lambda: libc.syscall(202, ctypes.byref(word), 9 | 256, 0, deadline(0.2), None, -1)
timed(wait)
"""


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("seconds", [3600, -3600])
def test_deadlines_on_the_wall_clock_take_as_long_as_is_meant(seconds):
    if platform.machine() != "x86_64":
        pytest.skip("the futex call has another number here")
    for waited_s in map(float, ask(WAITS, skew_clock(seconds)).split()):
        assert 0.15 < waited_s < 20


@needs_compiler
def test_drift_makes_the_clock_of_all_processes_run_away():
    environment = skew_clock(0, drift=1000.0)
    time.sleep(0.1)
    first = float(ask("import time; print(time.time())", environment))
    second = float(ask("import time; print(time.time())", environment))
    assert first - time.time() > 50
    assert second > first


@needs_compiler
def test_environment_keeps_what_it_had():
    twice = skew_clock(60, environ=skew_clock(3600, environ={"A": "b", **PRELOAD}))
    assert twice["A"] == "b"
    ours, other = twice["LD_PRELOAD"].split(":")
    assert "clock-skew" in ours
    assert other == "libdl.so.2"
    told = float(ask("import time; print(time.time())", twice))
    assert told == pytest.approx(time.time() + 60, abs=15)


PRELOAD = {"LD_PRELOAD": "libdl.so.2"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"seconds": 2e9}, "off by 1e\\+09 seconds at most"),
        ({"seconds": float("nan")}, "at most, got nan"),
        ({"seconds": 0, "drift": -1.0}, "must be over -1"),
    ],
)
def test_skew_that_makes_no_sense_is_refused(arguments, says):
    with pytest.raises(ProgramError, match=says):
        skew_clock(**arguments)


def test_clock_without_a_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(MissingPrivilegeError, match="needs a C compiler: install one"):
        skew_clock(1)


@needs_compiler
def test_library_is_kept_where_nobody_else_can_change_it(monkeypatch, tmp_path):
    folder = tmp_path / "drivetrain" / "elastic"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingPrivilegeError, match="writable for nobody else"):
        skew_clock(1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    with pytest.raises(FaultError, match="no spaces"):
        skew_clock(1)
