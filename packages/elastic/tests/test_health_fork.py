"""The server of measurements as a fork: where it is safe, and that it measures the same."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from drivetrain_elastic.health._fork import Fork, may_fork

MEASURES = """
import sys, threading
import torch
from drivetrain_elastic.health import CheckConfig
from drivetrain_elastic.health._bench import Bench
from drivetrain_elastic.health._fork import Fork, may_fork
assert may_fork()
config = CheckConfig(checks=("memory",), measure_s=0.05)
with Bench(config) as bench:
    assert bench.measure("memory", limit_s=60.0).found.measures["memory_gb_per_s"] > 0
    assert isinstance(bench._server, Fork)
    server = bench._server
assert server.returncode == 0
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
assert not may_fork()
stop.set()
thread.join()
import grpc
assert not may_fork()
print("done")
"""


def test_fork_measures_as_a_new_process_does():
    command = [sys.executable, "-c", textwrap.dedent(MEASURES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_process_without_torch_does_not_fork(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert not may_fork()


def test_fork_ends_with_its_function_and_keeps_one_descriptor():
    read_end, write_end = os.pipe()

    def run():
        named = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
        # One of them is that of the folder.
        expected = {0, 1, 2, write_end}
        os.write(write_end, f"{expected - named} {len(named - expected)}".encode())

    fork = Fork(run, write_end)
    os.close(write_end)
    assert fork.wait(60.0) == 0
    with os.fdopen(read_end) as reader:
        assert reader.read() == "set() 1"


def test_fork_whose_function_raises_ends_with_1(capfd):
    def run():
        raise ValueError("no")

    assert Fork(run, 2).wait(60.0) == 1
    assert "ValueError: no" in capfd.readouterr().err


def test_fork_that_does_not_end_can_be_killed():
    fork = Fork(signal.pause, 2)
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.01)
    fork.kill()
    assert fork.wait(60.0) == -signal.SIGKILL
    fork.kill()
    assert fork.wait() == -signal.SIGKILL
