"""Lets all ranks of a job decide alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from drivetrain_kernels._errors import SelectionError
from drivetrain_kernels.selector._decide import Trial, slowest

if TYPE_CHECKING:
    from collections.abc import Sequence


def agreed_trials(
    trials: Sequence[Trial], group: dist.ProcessGroup | None, failure: str = ""
) -> list[Trial]:
    """Returns the trials that all ranks decide from: each as on its slowest rank.

    Args:
        trials: This rank's.
        group: The ranks; None for this process alone. Every rank has to call.
        failure: Why this rank has none; it then raises by itself.

    Raises:
        SelectionError: Another rank has failed.
    """
    if group is None:
        return list(trials)
    own = {"failure": failure, "trials": [trial.as_dict() for trial in trials]}
    every = [json.loads(other) for other in _gathered(json.dumps(own), group)]
    for rank, found in enumerate(every):
        if found["failure"] and not failure:
            message = f"rank {rank} could not select: {found['failure']}"
            raise SelectionError(message)
    return slowest([[Trial(**f) for f in found["trials"]] for found in every])


def agreed_text(text: str, group: dist.ProcessGroup | None) -> str:
    """Returns the text of the group's first rank.

    Args:
        text: This rank's.
        group: The ranks; None for this process alone. Every rank has to call.
    """
    return text if group is None else _gathered(text, group)[0]


def _gathered(text: str, group: dist.ProcessGroup) -> list[str]:
    own = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
    device = _device(group)
    own = own.to(device)
    sizes = [
        torch.zeros(1, dtype=torch.int64, device=device) for _ in range(group.size())
    ]
    dist.all_gather(sizes, torch.tensor([own.numel()], device=device), group=group)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: own.numel()] = own
    parts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    pairs = zip(parts, sizes, strict=True)
    return [bytes(part[: int(n)].tolist()).decode() for part, n in pairs]


def _device(group: Any) -> torch.device:
    # A group that has no backend for CPU tensors has one for this rank's device alone.
    devices = {device.type for device in group._device_types}
    if "cpu" in devices:
        return torch.device("cpu")
    return torch.device(devices.pop(), torch.accelerator.current_device_index())
