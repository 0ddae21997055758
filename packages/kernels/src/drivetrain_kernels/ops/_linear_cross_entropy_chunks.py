"""Linear cross-entropy in chunks of tokens, so that the logits never exist as a whole.

A chunk's logits are computed in one buffer that is used again and again, turned into
their own gradient in place, and multiplied into the gradients of the hidden states and of
the weight at once; both are summed in float32. The extra memory is the buffer's, whatever
the number of tokens.

Shapes: T tokens, C tokens of a chunk, H hidden size, V classes (of this rank's shard).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drivetrain_kernels.ops._loss_options import accumulation_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_kernels.ops._vocab_parallel import Shard

__all__ = ["Gradients", "Problem", "chunk_size", "run_chunks"]

# Of logits in a chunk. On a CPU more would leave the caches without need; on a GPU less
# would make the matrix products too small to fill it.
BUFFER_BYTES = {"cpu": 128 << 20}
GPU_BUFFER_BYTES = 512 << 20
MIN_TOKENS = 16
# Of a narrow weight's gradient of one chunk, made before it is added to the wide sum.
BLOCK_BYTES = 32 << 20
MIN_BLOCK_ROWS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Tensors and numbers of one linear cross-entropy; see `linear_cross_entropy`.

    `softcap` is 0 for none, `chunk_tokens` 0 for a size by `chunk_size`.
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

    @property
    def wide(self) -> torch.dtype:
        """The dtype of logits, losses and sums."""
        return accumulation_dtype(self.hidden.dtype)


@dataclass(slots=True)
class Gradients:
    """Gradients that are wanted, summed in the wide dtype; None is not wanted."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def zeros(cls, problem: Problem, wanted: tuple[bool, bool, bool]) -> Gradients:
        """Returns gradients to sum into, for those that are wanted."""
        like = (problem.hidden, problem.weight, problem.bias)
        made = [
            torch.zeros_like(
                t, dtype=problem.wide, memory_format=torch.contiguous_format
            )
            if is_wanted and t is not None
            else None
            for is_wanted, t in zip(wanted, like, strict=True)
        ]
        return cls(*made)

    def scale_(self, scale: Tensor) -> None:
        """Multiplies all of them in place."""
        for grad in (self.hidden, self.weight, self.bias):
            if grad is not None:
                grad.mul_(scale)


def chunk_size(num_tokens: int, num_classes: int, item_bytes: int, device: str) -> int:
    """Returns how many tokens a chunk has, by the bytes that its logits may take.

    Args:
        num_tokens: The tokens there are.
        num_classes: The classes, of this rank's shard.
        item_bytes: The bytes that one logit takes in all buffers together.
        device: The type of the device.

    Example:
        >>> chunk_size(8192, 131072, 4, "cpu")
        256
    """
    budget = BUFFER_BYTES.get(device, GPU_BUFFER_BYTES)
    fitting = budget // (item_bytes * max(1, num_classes))
    # Chunks of equal size: a small last one would use the machine badly.
    num_chunks = -(-max(1, num_tokens) // max(MIN_TOKENS, fitting))
    return -(-max(1, num_tokens) // num_chunks)


def run_chunks(
    problem: Problem,
    shard: Shard,
    gradients: Gradients | None,
    grad_T: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the losses of the tokens and their log-denominators.

    Args:
        problem: What is computed.
        shard: Whose classes the weight's rows are.
        gradients: Where gradients are added, of the sum of the losses; None for none.
        grad_T: Weighs the tokens in the gradients; None for ones.
    """
    num_tokens = problem.hidden.shape[0]
    losses_T = problem.hidden.new_empty(num_tokens, dtype=problem.wide)
    lse_T = torch.empty_like(losses_T)
    step = _Chunk(problem, shard, gradients)
    for rows in _slices(num_tokens, step.size):
        scale = None if grad_T is None else grad_T[rows].to(problem.wide)
        losses_T[rows], lse_T[rows] = step(rows, scale)
    if gradients is not None and gradients.hidden is not None:
        shard.total_(gradients.hidden)
    return losses_T, lse_T


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


class _Chunk:
    """Computes one chunk after the other in the same buffers."""

    def __init__(
        self, problem: Problem, shard: Shard, gradients: Gradients | None
    ) -> None:
        self.problem = problem
        self.shard = shard
        self.gradients = gradients
        num_tokens, num_classes = len(problem.hidden), len(problem.weight)
        device = problem.hidden.device
        num_buffers = 2 if problem.softcap and gradients else 1
        # A narrow product or gradient stands beside the wide buffer for a while.
        narrow = problem.hidden.dtype
        beside = 0 if narrow == problem.wide else narrow.itemsize
        item_bytes = problem.wide.itemsize * num_buffers + beside
        self.size = problem.chunk_tokens or chunk_size(
            num_tokens, num_classes, item_bytes, device.type
        )
        self.size = max(1, min(self.size, num_tokens))
        shape = (self.size, num_classes)
        self.logits_CV = torch.empty(shape, dtype=problem.wide, device=device)
        self.slopes_CV = torch.empty_like(self.logits_CV) if num_buffers > 1 else None

    def __call__(self, rows: slice, scale_C: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns losses and log-denominators of the rows, and adds their gradients."""
        problem = self.problem
        z_CV = self.logits_CV[: rows.stop - rows.start]
        _project(problem, rows, z_CV)
        slope_CV = self._cap(z_CV)
        target_C = problem.target[rows]
        counts_C = target_C != problem.ignore_index
        local_C, is_here_C = self.shard.owned(target_C, counts_C)
        at_target = local_C.unsqueeze(1)
        mine_C = z_CV.gather(1, at_target).squeeze(1).masked_fill(~is_here_C, 0.0)
        eps = problem.label_smoothing
        sum_C = z_CV.sum(1) if eps else torch.zeros_like(mine_C)
        max_C = self.shard.max_(z_CV.amax(1))
        # Rows of infinities only would otherwise give inf - inf.
        max_C.nan_to_num_(nan=torch.nan, posinf=torch.inf, neginf=0.0)
        z_CV.sub_(max_C.unsqueeze(1)).exp_()
        exp_sum_C, target_logit_C, sum_C = self.shard.sum_(z_CV.sum(1), mine_C, sum_C)
        lse_C = max_C + exp_sum_C.log()
        losses_C = lse_C - (1.0 - eps) * target_logit_C
        if eps:
            losses_C = losses_C - eps / self.shard.num_classes * sum_C
        if problem.z_loss:
            losses_C = losses_C + problem.z_loss * lse_C.square()
        if self.gradients is not None:
            weight_C = counts_C.to(problem.wide)
            if scale_C is not None:
                weight_C = torch.where(counts_C, scale_C, 0.0)
            share_C = weight_C * (1.0 + 2.0 * problem.z_loss * lse_C) / exp_sum_C
            z_CV.mul_(share_C.unsqueeze(1))
            if eps:
                z_CV.sub_((weight_C * (eps / self.shard.num_classes)).unsqueeze(1))
            hit_C = torch.where(is_here_C, weight_C * (1.0 - eps), 0.0)
            taken = z_CV.gather(1, at_target) - hit_C.unsqueeze(1)
            z_CV.scatter_(1, at_target, taken)
            if slope_CV is not None:
                z_CV.mul_(slope_CV)
            _accumulate(problem, rows, z_CV, self.gradients)
        zero = losses_C.new_zeros(())
        return torch.where(counts_C, losses_C, zero), lse_C

    def _cap(self, z_CV: Tensor) -> Tensor | None:
        """Caps logits in place, and returns the cap's slopes if gradients need them."""
        cap = self.problem.softcap
        if not cap:
            return None
        z_CV.div_(cap).tanh_()
        slope_CV = None
        if self.slopes_CV is not None:
            slope_CV = self.slopes_CV[: len(z_CV)]
            torch.mul(z_CV, z_CV, out=slope_CV).neg_().add_(1.0)
        z_CV.mul_(cap)
        return slope_CV


def _blocks(problem: Problem) -> Iterator[slice]:
    """Yields rows of the weight, of which temporary products are made at a time."""
    num_classes, hidden_size = problem.weight.shape
    if problem.hidden.dtype == problem.wide:
        return _slices(num_classes, num_classes)
    fitting = BLOCK_BYTES // (problem.wide.itemsize * max(1, hidden_size))
    return _slices(num_classes, max(MIN_BLOCK_ROWS, fitting))


def _product(a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """Returns a product of narrow matrices, wide where the device can."""
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=wide)
    return torch.mm(a, b)


def _project(problem: Problem, rows: slice, z_CV: Tensor) -> None:
    x_CH, weight_VH = problem.hidden[rows], problem.weight
    if x_CH.dtype == problem.wide:
        torch.mm(x_CH, weight_VH.t(), out=z_CV)
    else:
        for block in _blocks(problem):
            z_CV[:, block] = _product(x_CH, weight_VH[block].t(), problem.wide)
    if problem.bias is not None:
        z_CV.add_(problem.bias)


def _accumulate(
    problem: Problem, rows: slice, dz_CV: Tensor, gradients: Gradients
) -> None:
    x_CH, weight_VH = problem.hidden[rows], problem.weight
    if gradients.bias is not None:
        gradients.bias.add_(dz_CV.sum(0))
    if x_CH.dtype == problem.wide:
        if gradients.hidden is not None:
            torch.mm(dz_CV, weight_VH, out=gradients.hidden[rows])
        if gradients.weight is not None:
            gradients.weight.addmm_(dz_CV.t(), x_CH)
        return
    for block in _blocks(problem):
        part_CB = dz_CV[:, block].to(x_CH.dtype)
        if gradients.hidden is not None:
            product = _product(part_CB, weight_VH[block], problem.wide)
            gradients.hidden[rows].add_(product)
        if gradients.weight is not None:
            product = _product(part_CB.t(), x_CH, problem.wide)
            gradients.weight[block].add_(product)
