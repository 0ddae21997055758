"""Collectives in a group of nodes: how fast they are, and whether what comes is right."""

from __future__ import annotations

import hashlib
import secrets
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_health.checks._task import CheckFailedError, Found

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

    from drivetrain_health.checks._task import Task

# Rounds are many enough that one slow packet does not count, and few on a slow network.
_NUM_WORDS = 1 << 19
_NUM_ROUNDS = 3
# Only the end of a group's exchange tells who did not take part in it.
_SOONER = 0.9


def meet_and_exchange(
    task: Task,
    make_group: Callable[[Store, int, int, timedelta], Any],
    device: torch.device,
    *,
    prefix: str,
    synchronize: Callable[[], object],
) -> Found:
    """Makes a process group with the other nodes, and does what `exchange` does.

    Args:
        task: Of this node.
        make_group: Given a store, a rank, their number, and how long to wait.
        device: Where the group's tensors are.
        prefix: Of the measures' names.
        synchronize: Waits for the device.

    Raises:
        CheckFailedError: The nodes do not reach each other, or get what was not sent.
    """
    assert task.store is not None
    # The others are waited for less long than until this one is killed.
    wait = timedelta(seconds=task.limit_s * _SOONER)
    task.store.set_timeout(wait)
    task.note("meeting the others")
    try:
        group = make_group(task.store, task.rank, task.num_nodes, wait)
        task.note("exchanging with the others")
        return exchange(group, device, prefix=prefix, synchronize=synchronize)
    except RuntimeError as error:
        if isinstance(error, CheckFailedError):
            raise
        raise CheckFailedError(str(error)) from error


def exchange(
    group: ProcessGroup,
    device: torch.device,
    *,
    prefix: str,
    synchronize: Callable[[], object],
) -> Found:
    """All-gathers what each node has drawn at random, and reduces what can be foretold.

    Args:
        group: Of the nodes.
        device: Where the group's tensors are.
        prefix: Of the measures' names.
        synchronize: Waits for the device.

    Raises:
        CheckFailedError: What has arrived is wrong.
    """
    rank, size = group.rank(), group.size()
    mine = _words(secrets.randbits(40), _NUM_WORDS).to(device)
    all_ = [torch.zeros_like(mine) for _ in range(size)]
    # Also the barrier: nobody's time begins before all are there.
    group.allgather([all_], [mine]).wait()
    synchronize()
    begin_s = time.monotonic()
    for _ in range(_NUM_ROUNDS):
        group.allgather([all_], [mine]).wait()
    synchronize()
    gather_s = (time.monotonic() - begin_s) / _NUM_ROUNDS
    _check_gathered(all_, mine, rank)
    rate = mine.nbytes * (size - 1) / gather_s / 1e9
    rates = {f"{prefix}_all_gather_gb_per_s": rate}
    total = torch.zeros_like(mine)
    group.allreduce([total]).wait()
    synchronize()
    begin_s = time.monotonic()
    for _ in range(_NUM_ROUNDS):
        total.copy_(mine)
        group.allreduce([total]).wait()
    synchronize()
    reduce_s = (time.monotonic() - begin_s) / _NUM_ROUNDS
    if not torch.equal(total, sum(all_[1:], all_[0])):
        message = f"the sum over {size} nodes is not that of what they have sent"
        raise CheckFailedError(message)
    # As many bytes cross each node's link as in a ring: 2 (n - 1) / n of the tensor.
    rate = 2 * mine.nbytes * (size - 1) / size / reduce_s / 1e9
    rates[f"{prefix}_all_reduce_gb_per_s"] = rate
    # The half of it in which nodes compute; what is gathered is the other.
    num = len(mine) // size
    parts, part = list(mine[: num * size].chunk(size)), torch.zeros_like(mine[:num])
    group.reduce_scatter([part], [parts]).wait()
    synchronize()
    begin_s = time.monotonic()
    for _ in range(_NUM_ROUNDS):
        group.reduce_scatter([part], [parts]).wait()
    synchronize()
    scatter_s = (time.monotonic() - begin_s) / _NUM_ROUNDS
    if not torch.equal(part, total[rank * num : (rank + 1) * num]):
        message = f"the part of the sum over {size} nodes is not that of the whole"
        raise CheckFailedError(message)
    rate = part.nbytes * (size - 1) / scatter_s / 1e9
    rates[f"{prefix}_reduce_scatter_gb_per_s"] = rate
    received = hashlib.sha256(torch.stack(all_).cpu().numpy().tobytes())
    return Found(rates, received=received.hexdigest()[:32])


def _words(start: int, num: int) -> torch.Tensor:
    """Returns words that follow from the first, so that each can be checked.

    Example:
        >>> _words(7, 3).tolist()
        [7, 8, 9]
    """
    return torch.arange(start, start + num, dtype=torch.int64)


def _check_gathered(all_: list[torch.Tensor], mine: torch.Tensor, rank: int) -> None:
    for sender, words in enumerate(all_):
        wanted = mine if sender == rank else _words(int(words[0]), len(words)).to(words)
        if not torch.equal(words, wanted):
            num = int((words != wanted).sum())
            message = f"{num} of {len(words)} words of rank {sender} have arrived wrong"
            raise CheckFailedError(message)
