"""How long `import drivetrain_core` takes in a fresh interpreter, beside `import torch`."""

from __future__ import annotations

import statistics
import subprocess
import sys

from drivetrain_testing import Row

BOUND = 0.03
PROGRAM = (
    "import sys, time; start = time.perf_counter(); import {name}; "
    "print((time.perf_counter() - start) * 1e3, 'torch' in sys.modules)"
)


def milliseconds(name):
    command = [sys.executable, "-c", PROGRAM.format(name=name)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figure, torch = done.stdout.split()
    return float(figure), torch == "True"


def measure(quick):
    """Medians of alternated runs, with `import torch` beside them."""
    rounds = 5 if quick else 15
    ours, theirs = [], []
    for _ in range(rounds):
        time_ms, with_torch = milliseconds("drivetrain_core")
        ours.append(time_ms)
        theirs.append(milliseconds("torch")[0])
    core, torch = statistics.median(ours), statistics.median(theirs)
    return Row(
        figure=f"{core / torch:.1%} ({core:.1f} ms; import torch: {torch:.0f} ms)",
        holds=core <= BOUND * torch and not with_torch,
        details={"core_ms": ours, "torch_ms": theirs},
    )
