"""How fast memory is copied, and whether the copy is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_health.checks._task import CheckFailedError, Found, repeat

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task

# More than the caches of a processor hold.
_NUM_BYTES = 64 << 20


def measure(task: Task) -> Found:
    """Copies memory for a time; returns `memory_gb_per_s`, of reads and writes together.

    Raises:
        CheckFailedError: The copy differs.
    """
    source = torch.arange(_NUM_BYTES // 8)
    target = torch.zeros_like(source)
    num_copies, took_s = repeat(lambda: target.copy_(source), task.measure_s)
    if num_copies and not torch.equal(source, target):
        num = int((source != target).sum())
        message = f"{num} of {source.numel()} words differ after a copy"
        raise CheckFailedError(message)
    return Found({"memory_gb_per_s": 2 * _NUM_BYTES * num_copies / took_s / 1e9})
