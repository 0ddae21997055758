"""How long it takes until a daemon is there."""

import statistics

import torch
from workload import milliseconds, new_place

from drivetrain_checkpoint import Checkpointer
from drivetrain_core.testing import Row

_MOST_S = 0.100


def start(quick):
    """What the first save of one number takes more than the next: it starts a daemon."""
    state = {"state": {"t": torch.zeros(1)}}
    extra = []
    for _ in range(5 if quick else 15):
        with new_place() as place:
            checkpointer = Checkpointer(place.folder, job="start")
            stalls = [checkpointer.save(step, state).stall_s for step in range(4)]
            checkpointer.flush()
        extra.append(stalls[0] - statistics.median(stalls[1:]))
    return Row(
        figure=milliseconds(extra),
        holds=statistics.median(extra) <= _MOST_S,
        details={"all_s": extra},
    )
