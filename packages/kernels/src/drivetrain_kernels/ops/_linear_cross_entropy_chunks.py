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

from drivetrain_kernels.ops._linear_cross_entropy_steps import (
    Problem,
    item_bytes,
    make_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_kernels.ops._vocab_parallel import Shard

__all__ = ["Gradients", "chunk_size", "run_chunks"]

# Of logits in a chunk. On a CPU more would leave the caches without need; on a GPU less
# would make the matrix products too small to fill it.
BUFFER_BYTES = {"cpu": 128 << 20}
GPU_BUFFER_BYTES = 512 << 20
MIN_TOKENS = 16
# Of a narrow weight's gradient of one chunk, made before it is added to the wide sum.
BLOCK_BYTES = 32 << 20
MIN_BLOCK_ROWS = 1024


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
) -> Tensor:
    """Returns the losses of the tokens.

    Args:
        problem: What is computed.
        shard: Whose classes the weight's rows are.
        gradients: Where gradients are added, of the sum of the losses; None for none.
        grad_T: Weighs the tokens in the gradients; None for ones.
    """
    num_tokens, num_classes = len(problem.hidden), len(problem.weight)
    with_gradients = gradients is not None
    bytes_each = item_bytes(problem, with_gradients=with_gradients)
    size = problem.chunk_tokens or chunk_size(
        num_tokens, num_classes, bytes_each, problem.hidden.device.type
    )
    size = max(1, min(size, num_tokens))
    step = make_step(problem, shard, size, with_gradients=with_gradients)
    losses_T = problem.hidden.new_empty(num_tokens, dtype=problem.wide)
    for rows in _slices(num_tokens, size):
        z_CV = step.logits[: rows.stop - rows.start]
        _project(problem, rows, z_CV)
        scale = None if grad_T is None else grad_T[rows].to(problem.wide)
        losses_T[rows], dz_CV = step(z_CV, problem.target[rows], scale)
        if gradients is not None:
            _accumulate(problem, rows, dz_CV, gradients)
    if gradients is not None and gradients.hidden is not None:
        shard.total_(gradients.hidden)
    return losses_T


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


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
        gradients.bias.add_(dz_CV.sum(0, dtype=problem.wide))
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
