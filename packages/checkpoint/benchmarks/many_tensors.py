"""What a save costs beside its bytes: ten thousand tensors of one element."""

import statistics

import torch
from torch import nn
from workload import NUM_THREADS, new_place, settle

from drivetrain_checkpoint import Checkpointer
from drivetrain_core.testing import Row

_MOST_S = 0.020


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


def overhead(make):
    """The stall of a save of a state that has next to no bytes.

    Args:
        make: What makes the state.
    """

    def measure(quick):
        torch.set_num_threads(NUM_THREADS)
        state = make()
        with new_place() as place:
            checkpointer = Checkpointer(place.folder, job="many", keep=1)
            stalls = []
            for step in range(6 if quick else 16):
                handle = checkpointer.save(step, state)
                handle.wait()
                stalls.append(handle.stall_s)
                settle()
        found = statistics.median(stalls[1:])
        return Row(
            figure=f"{found * 1e3:.1f} ms (the first {stalls[0] * 1e3:.0f} ms)",
            holds=found <= _MOST_S,
            details={"stalls_s": stalls},
        )

    return measure
