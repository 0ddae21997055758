"""What a save costs beside its bytes: ten thousand tensors of one element.

The limit is measured between the saves: torch's copies of as many tensors, one by one.
"""

import statistics

import torch
from torch import nn
from workload import NUM_THREADS, new_place, settle, timed

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import Row

_NUM_TENSORS, _MOST = 10_000, 3.0


def flat():
    """A dict of 10,000 tensors."""
    return {"state": {f"layers.{i}.weight": torch.zeros(1) for i in range(10_000)}}


def module():
    """A module of 10,000 parameters."""
    return {"model": nn.ModuleList(nn.Linear(1, 1) for _ in range(5_000))}


def model_and_optimizer():
    """2,500 parameters and what AdamW keeps of them: 10,000 tensors."""
    model = nn.ModuleList(nn.Linear(1, 1) for _ in range(1_250))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def copy_singly(sources, targets):
    """Copies tensor by tensor."""
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


def overhead(make):
    """The stall of a save of a state that has next to no bytes, in copies by torch.

    Args:
        make: What makes the state.
    """

    def measure(quick):
        torch.set_num_threads(NUM_THREADS)
        state = make()
        sources, targets = (
            [torch.zeros(1) for _ in range(_NUM_TENSORS)] for _ in range(2)
        )
        with new_place() as place:
            checkpointer = Checkpointer(place.folder, job="many", keep=1)
            stalls, copies = [], []
            for step in range(6 if quick else 16):
                handle = checkpointer.save(step, state)
                handle.wait()
                stalls.append(handle.stall_s)
                settle()
                copies.append(timed(lambda: copy_singly(sources, targets)))
        pairs = zip(stalls[1:], copies[1:], strict=True)
        found = statistics.median(stall / copy for stall, copy in pairs)
        took = statistics.median(stalls[1:])
        return Row(
            figure=f"{found:.2f} x ({took * 1e3:.1f} ms; the first "
            f"{stalls[0] * 1e3:.0f} ms)",
            holds=found <= _MOST,
            details={"stalls_s": stalls, "copies_s": copies},
        )

    return measure
