"""Collectives between the CPUs of nodes, by Gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.distributed_c10d import ProcessGroupGloo

from drivetrain_health.checks._collectives import exchange, patience
from drivetrain_health.checks._task import CheckFailedError

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Found, Task


def measure(task: Task) -> Found:
    """Returns `network_all_gather_gb_per_s` and `network_all_reduce_gb_per_s`.

    Raises:
        CheckFailedError: The nodes do not reach each other, or get what was not sent.
    """
    assert task.store is not None
    wait = patience(task.limit_s)
    task.store.set_timeout(wait)
    task.note("meeting the others")
    try:
        group: Any = ProcessGroupGloo(task.store, task.rank, task.num_nodes, wait)
        task.note("exchanging with the others")
        return exchange(
            group, torch.device("cpu"), prefix="network", synchronize=lambda: None
        )
    except RuntimeError as error:
        if isinstance(error, CheckFailedError):
            raise
        raise CheckFailedError(str(error)) from error
