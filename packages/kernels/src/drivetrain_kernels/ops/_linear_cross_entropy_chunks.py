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

# Of logits in a chunk. On a CPU more would leave the caches without need; on a GPU less
# makes the matrix products small, and the weight's wide gradient is read and written for
# each chunk. An H200 took 54, 48 and 46 ms with 0.5, 1 and 2 GiB, for 8,192 tokens, a
# hidden size of 4,096 and 128,256 classes; the three products alone take 34.
BUFFER_BYTES = {"cpu": 128 << 20}
GPU_BUFFER_BYTES = 1 << 30
MIN_TOKENS = 16
# Of a narrow weight's gradient of one chunk, made before it is added to the wide sum.
BLOCK_BYTES = 32 << 20
GPU_BLOCK_BYTES = 512 << 20
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
    sums = None if gradients is None else _Sums(problem, gradients)
    is_narrow = problem.hidden.dtype != problem.wide
    narrow = problem.weight.new_empty((size, num_classes)) if is_narrow else None
    losses_T = problem.hidden.new_empty(num_tokens, dtype=problem.wide)
    for rows in _slices(num_tokens, size):
        z_CV = step.logits[: rows.stop - rows.start]
        _project(problem, rows, z_CV, narrow)
        scale = None if grad_T is None else grad_T[rows].to(problem.wide)
        losses_T[rows], dz_CV = step(z_CV, problem.target[rows], scale, narrow)
        if sums is not None:
            sums.add(rows, dz_CV, narrow)
    if gradients is not None and gradients.hidden is not None:
        shard.total_(gradients.hidden)
    return losses_T


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _project(
    problem: Problem, rows: slice, z_CV: Tensor, narrow: Tensor | None
) -> None:
    """Writes the logits of a chunk, without their cap."""
    x_CH, weight_HV = problem.hidden[rows], problem.weight.t()
    if narrow is None:
        torch.mm(x_CH, weight_HV, out=z_CV)
    elif _widens(x_CH):
        z_CV.copy_(torch.mm(x_CH, weight_HV, out_dtype=problem.wide))
    else:
        z_CV.copy_(torch.mm(x_CH, weight_HV, out=narrow[: len(x_CH)]))
    if problem.bias is not None:
        z_CV.add_(problem.bias)


def _widens(narrow: Tensor) -> bool:
    """Whether products of narrow matrices can have wide results on this device."""
    overloads = torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call]
    return narrow.device.type != "cpu" and "dtype" in overloads


class _Sums:
    """Adds what the chunks contribute to the gradients."""

    def __init__(self, problem: Problem, gradients: Gradients) -> None:
        self.problem = problem
        self.gradients = gradients
        num_classes, hidden_size = problem.weight.shape
        on_gpu = problem.hidden.device.type != "cpu"
        block_bytes = GPU_BLOCK_BYTES if on_gpu else BLOCK_BYTES
        fitting = block_bytes // (problem.wide.itemsize * max(1, hidden_size))
        self.block_rows = min(num_classes, max(MIN_BLOCK_ROWS, fitting))
        # New memory for each product would cost a CPU as much as the product.
        is_needed = (
            problem.hidden.dtype != problem.wide
            and gradients.weight is not None
            and not _widens(problem.hidden)
        )
        rows = self.block_rows if is_needed else 0
        self.product = problem.weight.new_empty((rows, hidden_size))

    def add(self, rows: slice, dz_CV: Tensor, narrow: Tensor | None) -> None:
        """Adds the gradients of a chunk, given those of its logits."""
        problem, gradients = self.problem, self.gradients
        x_CH, weight_VH = problem.hidden[rows], problem.weight
        if gradients.bias is not None:
            gradients.bias.add_(dz_CV.sum(0, dtype=problem.wide))
        if narrow is None:
            if gradients.hidden is not None:
                torch.mm(dz_CV, weight_VH, out=gradients.hidden[rows])
            if gradients.weight is not None:
                gradients.weight.addmm_(dz_CV.t(), x_CH)
            return
        if dz_CV.dtype == problem.wide:
            dz_CV = narrow[: len(x_CH)].copy_(dz_CV)
        if gradients.hidden is not None:
            gradients.hidden[rows] = self._product(dz_CV, weight_VH)
        if gradients.weight is not None:
            for block in _slices(len(weight_VH), self.block_rows):
                self._add_product(gradients.weight[block], dz_CV[:, block].t(), x_CH)

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns a product of narrow matrices, wide where the device can."""
        if _widens(a):
            return torch.mm(a, b, out_dtype=self.problem.wide)
        return torch.mm(a, b)

    def _add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """Adds a product of narrow matrices to a wide sum."""
        if _widens(a):
            torch.addmm(total, a, b, out_dtype=self.problem.wide, out=total)
        else:
            total.add_(torch.mm(a, b, out=self.product[: len(a)]))
