"""Columns of a batch: its tensors as lists in the dtype of arithmetic, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_optim.batched._rounding import round_to_bfloat16_
from drivetrain_optim.batched._scalars import in_dtype, is_one

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from drivetrain_optim.batched._batch import Batch
    from drivetrain_optim.batched._scalars import Number


@dataclass(frozen=True, slots=True)
class Columns:
    """The local tensors of a batch, a list of each kind, in one dtype.

    Args:
        weights: The weights, or their masters.
        grads: The gradients, not to be changed.
        moments: A list for each moment.
    """

    weights: list[Tensor]
    grads: list[Tensor]
    moments: tuple[list[Tensor], ...]

    @classmethod
    def of(cls, batch: Batch, grads: Iterable[Tensor]) -> Columns:
        """Returns the columns of a batch; what has another dtype is copied."""
        dtype = batch.kind.dtype
        weights = (
            batch.kept("master") if batch.kind.master else batch.local(batch.params)
        )
        moments = (_widened(batch.kept(name), dtype) for name in batch.kind.moments)
        return cls(_widened(weights, dtype), _widened(grads, dtype), tuple(moments))

    def step_gradients(self, grad_scale: Number, coupled: float) -> list[Tensor]:
        """Returns the gradients as a step takes them, with one operation for all.

        Args:
            grad_scale: Factor on the gradients.
            coupled: Weight of the weights in the gradients.
        """
        grads: Any = self.grads
        if not is_one(grad_scale):
            scale = in_dtype(grad_scale, self.weights[0].dtype)
            grads = torch._foreach_mul(grads, scale)
        if coupled:
            grads = torch._foreach_add(grads, self.weights, alpha=coupled)
        return list(grads)

    def store_moments(self, batch: Batch) -> None:
        """Rounds the moments that were copied back into place."""
        for name, values in zip(batch.kind.moments, self.moments, strict=True):
            _copy(batch.kept(name), values)

    def store_weights(self, batch: Batch) -> None:
        """Rounds the weights that were copied back into place."""
        params = batch.local(batch.params)
        if batch.kind.master:
            _copy(batch.kept("master"), self.weights)
        if batch.kind.stochastic:
            seeds = batch.seeds().tolist()
            for param, value, seed in zip(params, self.weights, seeds, strict=True):
                round_to_bfloat16_(param, value, seed)
        else:
            _copy(params, self.weights)


def _widened(tensors: Iterable[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [t if t.dtype is dtype else t.to(dtype) for t in tensors]


def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    pairs = [(t, v) for t, v in zip(to, values, strict=True) if t is not v]
    if pairs:
        torch._foreach_copy_([t for t, _ in pairs], [v for _, v in pairs])
