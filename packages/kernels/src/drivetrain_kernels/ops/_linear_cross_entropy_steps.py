"""What happens to a chunk's logits: losses, and the gradients that take their place.

Shapes: C tokens of a chunk, V classes (of this rank's shard).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from drivetrain_kernels._accumulation import accumulation_dtype

if TYPE_CHECKING:
    from drivetrain_kernels.ops._vocab_parallel import Shard


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Tensors and numbers of one linear cross-entropy; see `linear_cross_entropy`.

    `hidden` has the shape [T, H], `weight` [V, H], `bias` [V], `target` [T]. `softcap` is
    0 for none, `chunk_tokens` 0 for a size that suits the device.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    target: Tensor
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    chunk_tokens: int
    with_triton: bool

    @property
    def wide(self) -> torch.dtype:
        """The dtype of logits, losses and sums."""
        return accumulation_dtype(self.hidden.dtype)


class Step(Protocol):
    """Turns the logits of one chunk after the other into losses and gradients."""

    logits: Tensor

    def __call__(
        self,
        z_CV: Tensor,
        target_C: Tensor,
        scale_C: Tensor | None,
        narrow: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Returns losses, and the gradients of the logits if they are wanted.

        Args:
            z_CV: The logits, without their cap; rows of `logits`, which the
                gradients may overwrite.
            target_C: The classes.
            scale_C: Weighs the tokens in the gradients; None for ones.
            narrow: A buffer for gradients in the dtype in which they are multiplied,
                if that is not the logits'.
        """


def item_bytes(problem: Problem, *, with_gradients: bool) -> int:
    """Returns the bytes that one logit of a chunk takes in all buffers together."""
    wide, narrow = problem.wide.itemsize, problem.hidden.dtype.itemsize
    has_slopes = problem.softcap and with_gradients and not problem.with_triton
    # A narrow product or gradient stands beside the wide logits.
    return wide * (2 if has_slopes else 1) + (narrow if narrow != wide else 0)


def make_step(
    problem: Problem, shard: Shard, num_tokens: int, *, with_gradients: bool
) -> Step:
    """Returns the step for a problem, with buffers for a chunk of some tokens."""
    kind = TritonStep if problem.with_triton else PlainStep
    return kind(problem, shard, num_tokens, with_gradients=with_gradients)


class PlainStep:
    """A step in torch's operators, in place; the classes may lie in shards."""

    def __init__(
        self, problem: Problem, shard: Shard, num_tokens: int, *, with_gradients: bool
    ) -> None:
        self.problem = problem
        self.shard = shard
        self.with_gradients = with_gradients
        self.logits = problem.weight.new_empty(
            (num_tokens, len(problem.weight)), dtype=problem.wide
        )
        has_slopes = problem.softcap and with_gradients
        self.slopes = torch.empty_like(self.logits) if has_slopes else None

    def __call__(
        self,
        z_CV: Tensor,
        target_C: Tensor,
        scale_C: Tensor | None,
        narrow: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Returns losses, and in place of the logits their gradients; see `Step`."""
        del narrow
        problem, shard, eps = self.problem, self.shard, self.problem.label_smoothing
        slope_CV = self._cap(z_CV)
        counts_C = target_C != problem.ignore_index
        local_C, is_here_C = shard.owned(target_C, counts_C)
        at_target = local_C.unsqueeze(1)
        mine_C = z_CV.gather(1, at_target).squeeze(1).masked_fill(~is_here_C, 0.0)
        sum_C = z_CV.sum(1) if eps else torch.zeros_like(mine_C)
        max_C = shard.max_(z_CV.amax(1))
        # Rows of minus infinity only would otherwise give inf - inf.
        max_C.masked_fill_(max_C == -torch.inf, 0.0)
        z_CV.sub_(max_C.unsqueeze(1)).exp_()
        exp_sum_C, chosen_C, sum_C = shard.sum_(z_CV.sum(1), mine_C, sum_C)
        lse_C = max_C + exp_sum_C.log()
        losses_C = lse_C - (1.0 - eps) * chosen_C
        if eps:
            losses_C = losses_C - eps / shard.num_classes * sum_C
        losses_C = losses_C + problem.z_loss * lse_C.square()
        if self.with_gradients:
            one = torch.ones_like(lse_C) if scale_C is None else scale_C
            weight_C = torch.where(counts_C, one, 0.0)
            share_C = weight_C * (1.0 + 2.0 * problem.z_loss * lse_C) / exp_sum_C
            z_CV.mul_(share_C.unsqueeze(1))
            if eps:
                z_CV.sub_((weight_C * (eps / shard.num_classes)).unsqueeze(1))
            hit_C = torch.where(is_here_C, weight_C * (1.0 - eps), 0.0)
            taken = z_CV.gather(1, at_target) - hit_C.unsqueeze(1)
            z_CV.scatter_(1, at_target, taken)
            if slope_CV is not None:
                z_CV.mul_(slope_CV)
        return shard.counted(losses_C, target_C, counts_C), z_CV

    def _cap(self, z_CV: Tensor) -> Tensor | None:
        """Caps logits in place, and returns the cap's slopes if gradients need them."""
        cap = self.problem.softcap
        if not cap:
            return None
        z_CV.div_(cap).tanh_()
        slope_CV = None
        if self.slopes is not None:
            slope_CV = self.slopes[: len(z_CV)]
            torch.mul(z_CV, z_CV, out=slope_CV).neg_().add_(1.0)
        z_CV.mul_(cap)
        return slope_CV


class TritonStep:
    """A step by Triton kernels: one pass for losses, one for gradients."""

    def __init__(
        self, problem: Problem, shard: Shard, num_tokens: int, *, with_gradients: bool
    ) -> None:
        # Importing the kernels imports Triton, which only those need who chose them.
        from drivetrain_kernels.ops import _triton_cross_entropy as kernels

        del shard
        numbers = (
            problem.ignore_index,
            problem.label_smoothing,
            problem.z_loss,
            problem.softcap,
        )
        self._kernels = kernels
        self._numbers = numbers
        self.with_gradients = with_gradients
        shape = (num_tokens, len(problem.weight))
        self.logits = problem.weight.new_empty(shape, dtype=problem.wide)

    def __call__(
        self,
        z_CV: Tensor,
        target_C: Tensor,
        scale_C: Tensor | None,
        narrow: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Returns losses and the gradients of the logits; see `Step`."""
        target_C = target_C.contiguous()
        losses_C, _, lse_C = self._kernels.class_losses_of(
            z_CV, target_C, *self._numbers
        )
        dz_CV = z_CV if narrow is None else narrow[: len(z_CV)]
        if self.with_gradients:
            self._kernels.class_gradients_into(
                dz_CV, scale_C, z_CV, target_C, lse_C, *self._numbers
            )
        return losses_C, dz_CV
