"""What trials cost that hang, die, run out of memory, raise, or compute nonsense."""

from __future__ import annotations

import os
import uuid

import psutil
import torch
from torch import nn

from drivetrain_core import accelerate, register, unregister
from drivetrain_core._processes.child_process import servers
from drivetrain_testing import FAULTS, FaultyOptimization, Row

TRIAL_S = 10.0
SLACK_S = 5.0
# By its name, what forks trials is another for each value, and so has it as well.
MARK = "TORCH_MARKED_BY_A_BENCHMARK"
CODES = {
    "hang": "HANG",
    "daemon": "HANG",
    "kill": "CRASH",
    "segfault": "CRASH",
    "exit": "CRASH",
    "memory": "MEMORY",
    "raise": "ERROR",
    "nan": "NUMERICS",
    "wrong_gradient": "NUMERICS",
    "stale_optimizer": "NUMERICS",
}


def left_over(mark):
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(MARK) == mark
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    # What forks trials rests a while before it ends.
    return [pid for pid in found if pid not in (os.getpid(), *servers())]


def measure(quick):
    """One search over all faults; in the quick form over those that end by themselves."""
    chosen = ("kill", "memory", "segfault", "nan") if quick else FAULTS
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    register(FaultyOptimization(chosen))
    try:
        accelerated = accelerate(
            lambda: nn.Linear(3, 1),
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            [(torch.randn(4, 3), torch.randn(4, 1))],
            lambda output, batch: nn.functional.mse_loss(output, batch[1]),
            budget={"seconds": 600, "trials": 20, "trial_seconds": TRIAL_S},
            allow=["faulty"],
            progress=False,
        )
    finally:
        unregister("faulty")
        del os.environ[MARK]
    remaining = left_over(mark)
    trials = {
        str(t.choices[0].config["fault"]): t
        for t in accelerated.report.trials
        if t.choices
    }
    untried = [fault for fault in chosen if fault not in trials]
    named = sum(t.code == CODES[f] for f, t in trials.items())
    over = max((trial.seconds - TRIAL_S for trial in trials.values()), default=0.0)
    figure = (
        f"{len(trials)} faults, {named} named, worst {over:+.1f} s beyond the time-out, "
        f"{len(remaining)} left"
    )
    if untried:
        figure += f"; no time was left to try {', '.join(untried)}"
    return Row(
        figure=figure,
        holds=named == len(chosen) and over <= SLACK_S and not remaining,
        details={f: [t.code, round(t.seconds, 2)] for f, t in trials.items()},
    )
