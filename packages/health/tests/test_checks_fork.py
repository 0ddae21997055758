"""The server of measurements as a fork: where it is safe, and that it measures the same."""

import subprocess
import sys
import textwrap

import pytest

from drivetrain_health.checks._fork import may_fork

MEASURES = """
import sys, threading
import torch
from drivetrain_health.checks import CheckConfig
from drivetrain_health.checks._bench import Bench
from drivetrain_health.checks._fork import Fork, may_fork
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


@pytest.mark.slow
def test_fork_measures_as_a_new_process_does():
    command = [sys.executable, "-c", textwrap.dedent(MEASURES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


LOST = """
import os, subprocess
import torch
from drivetrain_health.checks import CheckConfig
from drivetrain_health.checks._bench import Bench
from drivetrain_health.checks._fork import may_fork

# What torch does where a process has asked whether there is a GPU.
torch.accelerator.current_accelerator = lambda: torch.device("cuda")
os.register_at_fork(
    after_in_child=lambda: setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
)
assert may_fork()
with Bench(CheckConfig(checks=("memory",), measure_s=0.05)) as bench:
    assert bench.measure("memory", limit_s=60.0).found.measures["memory_gb_per_s"] > 0
    assert isinstance(bench._server, subprocess.Popen)
print("done")
"""


@pytest.mark.slow
def test_fork_that_has_lost_the_gpu_is_replaced_by_a_new_process():
    command = [sys.executable, "-c", LOST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_process_without_torch_does_not_fork(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert not may_fork()


ENDS = """
import os, signal, subprocess
from pathlib import Path
from drivetrain_health.checks._fork import Fork

read_end, write_end = os.pipe()

def tell():
    named = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    # One of them is that of the folder.
    expected = {0, 1, 2, write_end}
    os.write(write_end, f"{expected - named} {len(named - expected)}".encode())

fork = Fork(tell, write_end)
os.close(write_end)
assert fork.wait(60.0) == 0
with os.fdopen(read_end) as reader:
    assert reader.read() == "set() 1"

def fail():
    raise ValueError("no")

assert Fork(fail, 2).wait(60.0) == 1

fork = Fork(signal.pause, 2)
try:
    fork.wait(0.01)
except subprocess.TimeoutExpired:
    print("it goes on")
fork.kill()
assert fork.wait(60.0) == -signal.SIGKILL
fork.kill()
assert fork.wait() == -signal.SIGKILL
"""


def test_fork_ends_with_its_function_by_its_error_or_when_it_is_killed():
    # In a process of its own: here are threads of gRPC, which a fork would lack.
    command = [sys.executable, "-c", ENDS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "it goes on\n"
    assert "ValueError: no" in done.stderr
