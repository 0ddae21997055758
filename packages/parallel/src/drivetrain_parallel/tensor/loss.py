"""The loss of outputs that stay split over the vocabulary."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from drivetrain_parallel.tensor.plan import Style

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from drivetrain_parallel.tensor.plan import TensorPlan


def has_split_loss(plan: TensorPlan) -> bool:
    """Says whether the outputs of a plan's head stay split."""
    return any(m.style is Style.COLWISE_LOSS for m in plan.modules.values())


@contextmanager
def loss_context(plan: TensorPlan) -> Iterator[None]:
    """Runs forward, loss and backward inside: where a plan's loss is split, as such."""
    with loss_parallel() if has_split_loss(plan) else nullcontext():
        yield


def local_loss(loss: torch.Tensor) -> torch.Tensor:
    """Returns a loss as a plain tensor, equal on all ranks of the tensor axis."""
    return loss.full_tensor() if isinstance(loss, DTensor) else loss
