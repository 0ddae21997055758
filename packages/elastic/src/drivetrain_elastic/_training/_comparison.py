"""Comparison of the parameters of ranks, which are to be the same on all of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch.distributed import ReduceOp
from torch.distributed.tensor import DTensor

from drivetrain_elastic._membership._world_group import with_others
from drivetrain_elastic._training._parameter_hooks import sum_of_bits
from drivetrain_elastic._training._refusals import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)

_FIRST_STEPS, _EVERY = {1, 10}, 100
# Devices of different kinds may round the same update in different ways.
_MOST = 1e-3


def is_compared(step: int) -> bool:
    """Returns whether ranks compare what they have after a step, whatever it is.

    Example:
        >>> [step for step in range(1, 300) if is_compared(step)]
        [1, 10, 100, 200]
    """
    return step in _FIRST_STEPS or step % _EVERY == 0


def require_alike(
    named: Iterable[tuple[str, Tensor]],
    group: ProcessGroup,
    device: torch.device,
    step: int,
) -> None:
    """Compares parameters over ranks; all of these call it after the same step.

    Args:
        named: Parameters by name, in the same order everywhere.
        group: The ranks that have the same part of the model.
        device: Where they tell each other.
        step: The last one that counts.

    Raises:
        ProgramError: One differs by more than rounding can explain.
        RankLostError: A rank is gone.
    """
    found = [
        (name, one.to_local() if isinstance(one, DTensor) else one.detach())
        for name, one in named
    ]
    own = torch.tensor([sum_of_bits(one) for _, one in found], device=device)
    # The complements are in the opposite order, without an overflow.
    both = torch.stack([own, ~own])
    with with_others():
        group.allreduce([both], ReduceOp.MAX).wait()
    apart = (both[0] != ~both[1]).nonzero()
    if not len(apart):
        return
    name, mine = found[int(apart[0])]
    first = mine.to(device, copy=True).contiguous()
    with with_others():
        group.broadcast(first, 0).wait()
        size = first.norm().double().clamp(min=torch.finfo(torch.double).tiny)
        distance = ((mine.to(device) - first).norm().double() / size).reshape(1)
        distance.nan_to_num_(nan=torch.inf)
        group.allreduce([distance], ReduceOp.MAX).wait()
    share = f"{float(distance):.2g}"
    if not float(distance) <= _MOST:
        refuse("apart", name=name, step=step, share=share)
    logger.warning("after step %d, %r differs by %s over ranks", step, name, share)
