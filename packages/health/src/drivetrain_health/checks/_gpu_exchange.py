"""Collectives between the first GPUs of nodes, by NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_health.checks._collectives import exchange, patience
from drivetrain_health.checks._gpus import gpus
from drivetrain_health.checks._task import CheckFailedError, NotHereError

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Found, Task


def measure(task: Task) -> Found:
    """Returns `network_gpu_all_gather_gb_per_s` and `network_gpu_all_reduce_gb_per_s`.

    Raises:
        NotHereError: There is no GPU or no NCCL.
        CheckFailedError: The nodes do not reach each other, or get what was not sent.
    """
    device = gpus()[0]
    if not torch.distributed.is_nccl_available():
        message = "torch was built without NCCL"
        raise NotHereError(message)
    from torch.distributed.distributed_c10d import ProcessGroupNCCL

    assert task.store is not None
    torch.cuda.set_device(device)
    wait = patience(task.limit_s)
    task.store.set_timeout(wait)
    options = ProcessGroupNCCL.Options()
    options._timeout = wait
    task.note("meeting the others")
    try:
        group: Any = ProcessGroupNCCL(task.store, task.rank, task.num_nodes, options)
        task.note("exchanging with the others")
        return exchange(
            group,
            device,
            prefix="network_gpu",
            synchronize=lambda: torch.cuda.synchronize(device),
        )
    except RuntimeError as error:
        if isinstance(error, CheckFailedError):
            raise
        raise CheckFailedError(str(error)) from error
