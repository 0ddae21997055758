"""How long it takes until a daemon is there, in starts of an interpreter that does nothing."""

import statistics
import subprocess
import sys

import torch
from workload import milliseconds, new_place, timed

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import Row

_MOST = 8.0
_EMPTY = (sys.executable, "-c", "")


def start(quick):
    """What the first save of one number takes more than the next: it starts a daemon."""
    state = {"state": {"t": torch.zeros(1)}}
    extra, empty = [], []
    for _ in range(5 if quick else 15):
        with new_place() as place:
            checkpointer = Checkpointer(place.folder, job="start")
            stalls = [checkpointer.save(step, state).stall_s for step in range(4)]
            checkpointer.flush()
        extra.append(stalls[0] - statistics.median(stalls[1:]))
        empty.append(timed(lambda: subprocess.run(_EMPTY, check=True)))
    found = statistics.median(a / b for a, b in zip(extra, empty, strict=True))
    return Row(
        figure=f"{found:.1f} x ({milliseconds(extra)})",
        holds=found <= _MOST,
        details={"all_s": extra, "empty_s": empty},
    )
