"""The state that checkpointers are checked with: something of every kind."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from drivetrain_testing._clauses import require
from drivetrain_testing._models import make_trained, tensors_equal


def checked_state(num_steps: int, seed: int = 0) -> dict[str, Any]:
    """Returns a state after some steps, always the same for the same seed."""
    model, optimizer = make_trained(num_steps, seed)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "rng": generator.get_state(),
        "data": {
            "position": 640 + seed,
            "order": [3, (1, 2), None, True, 0.1 + seed, "a", b"b"],
            "seen": {1: torch.arange(3) + seed, "dtype": torch.bfloat16},
        },
    }


def snapshot(state: dict[str, Any]) -> dict[str, Any]:
    """Returns a deep copy of the values in a state."""
    model = state["model"]
    model = model.module if isinstance(model, nn.DataParallel) else model
    return copy.deepcopy(
        {
            "model": model.state_dict(),
            "optimizer": state["optimizer"].state_dict(),
            "scheduler": state["scheduler"].state_dict(),
            "rng": state["rng"],
            "data": state["data"],
        }
    )


def require_equal(one: object, other: object, where: str, path: str = "state") -> None:
    """Raises an `AssertionError` unless two snapshots are equal to the bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        require(one.keys() == other.keys(), f"{path} has the same keys {where}")
        for key in one:
            require_equal(one[key], other[key], where, f"{path}.{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        require(
            type(one) is type(other) and len(one) == len(other),
            f"{path} is the same sequence {where}",
        )
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            require_equal(a, b, where, f"{path}.{i}")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        require(tensors_equal(one, other), f"{path} is equal to the bit {where}")
    else:
        same = type(one) is type(other) and one == other
        require(same, f"{path} is {other!r} {where}, not {one!r}")
