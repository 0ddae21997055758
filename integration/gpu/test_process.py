"""Processes that are over their limit, and what they have started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading

import pytest
from process import Processes

CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print(child.pid, flush=True)
"""
WAIT = "import time\ntime.sleep(3600)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
LAST_WORDS = """
import time
try:
    time.sleep(3600)
except KeyboardInterrupt:
    print("measured", flush=True)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr("process._LAST_WORDS_S", 1.0)
    processes = Processes()

    def run(program, limit_s):
        ended = processes.run(
            [sys.executable, "-c", program],
            limit_s=limit_s,
            environment=dict(os.environ),
            folder=tmp_path,
            output=tmp_path / "out",
            log=tmp_path / "log",
        )
        return ended, (tmp_path / "out").read_text()

    run.processes = processes
    return run


def has_ended(pid):
    """Whether a process ends within some seconds; somebody else is its parent."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)


def test_process_that_ends_is_told_with_its_status(start):
    ended, printed = start("import sys; print('a'); sys.exit(3)", 60)
    assert (ended.code, ended.stopped, printed) == (3, False, "a\n")


def test_what_a_process_has_started_ends_with_it(start):
    ended, printed = start(CHILD, 60)
    assert ended.code == 0
    assert has_ended(int(printed))


@pytest.mark.slow
@pytest.mark.parametrize("program", [WAIT, STUBBORN + WAIT])
def test_process_over_its_limit_is_ended(start, program):
    ended, _ = start(CHILD + program, 5)
    assert ended.stopped
    assert ended.code != 0


@pytest.fixture
def interruptible():
    """Lets processes be interrupted, whatever whoever started the tests has said."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_process_over_its_limit_may_say_what_it_has(start):
    ended, printed = start(LAST_WORDS, 5)
    assert ended.stopped
    assert printed == "measured\n"


def test_close_ends_what_runs_and_starts_nothing(start):
    ended = []
    thread = threading.Thread(target=lambda: ended.append(start(WAIT, None)[0]))
    thread.start()
    while not start.processes._running:
        thread.join(0.01)
    start.processes.close()
    thread.join()
    assert ended[0].stopped
    assert start(WAIT, None)[0].stopped


def test_process_whose_start_a_signal_interrupts_is_ended_too(start, monkeypatch):
    begun, told = [], []
    popen = subprocess.Popen

    def interrupted(*args, **kwargs):
        process = popen(*args, **kwargs)
        begun.append(process.pid)
        told.append(start.processes.close())  # as the handler does, in the same thread
        return process

    monkeypatch.setattr("process.subprocess.Popen", interrupted)
    with pytest.raises(SystemExit):
        start(WAIT, 600)
    assert told == [False]
    assert has_ended(begun[0])
    assert start.processes.close()
