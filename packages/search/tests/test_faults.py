"""A trial that breaks costs its time-out at most, is named, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid

import psutil
import pytest
import torch

from drivetrain_core import accelerate, register, unregister
from drivetrain_core._processes.child_process import servers
from drivetrain_testing import FAULTS, FaultyOptimization

TRIAL_S = 15.0
EXPECTED = {
    "hang": ("HANG", "in _break"),
    "daemon": ("HANG", "in _break"),
    "kill": ("CRASH", "SIGKILL"),
    "segfault": ("CRASH", "SIGSEGV"),
    "exit": ("CRASH", "code 7"),
    "memory": ("MEMORY", "out of memory"),
    "raise": ("ERROR", "this fault is on purpose"),
    "nan": ("NUMERICS", "nan"),
    "wrong_gradient": ("NUMERICS", "differs for weight"),
    "stale_optimizer": ("NUMERICS", "do not train"),
}


@pytest.fixture(scope="module")
def marker():
    """A variable that every process started by these tests inherits.

    By its name a library may read it when it is imported: what forks trials is therefore
    another for these tests than for those before, and has it too.
    """
    value = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_MARKED_BY_A_TEST", value)
        yield value


def processes_with(marker):
    found = []
    for process in psutil.process_iter():
        try:
            inherited = process.environ().get("TORCH_MARKED_BY_A_TEST") == marker
            if inherited and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    # What forks trials rests a while before it ends.
    return [pid for pid in found if pid not in (os.getpid(), *servers())]


def search(faults, **settings):
    register(FaultyOptimization(faults))
    data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(3)]
    try:
        return accelerate(
            lambda: torch.nn.Linear(3, 1),
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            data,
            lambda output, batch: torch.nn.functional.mse_loss(output, batch[1]),
            budget={"seconds": 300, "trials": 20, "trial_seconds": TRIAL_S},
            allow=["faulty"],
            progress=False,
            **settings,
        )
    finally:
        unregister("faulty")


@pytest.fixture(scope="module")
def broken(marker):
    """One search over every fault."""
    accelerated = search(EXPECTED)
    assert processes_with(marker) == []
    return accelerated


@pytest.mark.slow
@pytest.mark.parametrize("fault", EXPECTED)
def test_fault_is_named_and_costs_its_timeout_at_most(broken, fault):
    (trial,) = (
        t
        for t in broken.report.trials
        if t.choices and t.choices[0].config["fault"] == fault
    )
    code, words = EXPECTED[fault]
    assert (trial.code, trial.measurement) == (code, None)
    assert words in trial.because + trial.log
    assert trial.seconds < TRIAL_S + 5
    (rejected,) = (r for r in broken.plan.rejected if fault in r.plan)
    assert rejected.code == code


@pytest.mark.slow
def test_faults_everywhere_leave_the_baseline(broken):
    assert len(broken.report.trials) == 1 + len(FAULTS)
    assert str(broken.plan) == "baseline"
    assert broken.train_step(next(iter(broken.loader))) > 0


INTERRUPTED = """
import signal, sys, torch

# A shell starts what runs in its background with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

from drivetrain_core import accelerate, register
from drivetrain_testing import FAULTS, FaultyOptimization

register(FaultyOptimization(["daemon"]))
print("ready", flush=True)
accelerate(
    lambda: torch.nn.Linear(3, 1),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    [(torch.randn(4, 3), torch.randn(4, 1))],
    lambda output, batch: torch.nn.functional.mse_loss(output, batch[1]),
    allow=["faulty"],
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "signal_name", ["SIGINT", pytest.param("SIGKILL", marks=pytest.mark.faults)]
)
def test_interrupted_search_leaves_no_process(tmp_path, signal_name):
    import signal

    script = tmp_path / "train.py"
    script.write_text(INTERRUPTED)
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as child:
        # The baseline's line says that the next trial, which hangs, has begun.
        for line in child.stderr:
            if line.startswith("t01"):
                break
        deadline = time.monotonic() + 60
        while not _ranks(child.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        ranks = _ranks(child.pid)
        assert ranks
        child.send_signal(getattr(signal, signal_name))
        child.wait(60)
    gone, alive = psutil.wait_procs(ranks, timeout=60)
    assert alive == []
    assert len(gone) == len(ranks)
    if signal_name == "SIGINT":
        assert child.returncode == -signal.SIGINT
        assert list(tmp_path.glob("drivetrain-*")) == []


def _ranks(pid):
    """Returns the ranks of a process, which something else has forked for it."""
    try:
        return [r for s in psutil.Process(pid).children() for r in s.children()]
    except psutil.NoSuchProcess:
        return []
