"""Triton kernels that bring the experts' results back to their tokens, and back again.

One program reads the rows of a token one after the other and keeps their sum in
registers; the backward has one program for each row. Nothing is added in memory.

Shapes: T tokens, K assignments a token, N = T K rows in the order of experts, H width.

Importing this module imports Triton.
"""

# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._triton_blocks import (
    TRITON_DTYPES,
    num_warps,
    on_device_of,
    round_to,
)

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def _sum_kernel(
    Y,
    WEIGHTS,
    ROWS,
    OUT,
    width,
    TOP_K: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros([BLOCK], ACC)
    for place in tl.static_range(TOP_K):
        row = tl.load(ROWS + token * TOP_K + place)
        part = tl.load(Y + row * width + columns, mask=inside, other=0.0).to(ACC)
        if HAS_WEIGHTS:
            part *= tl.load(WEIGHTS + token * TOP_K + place).to(ACC)
        total += part
    tl.store(OUT + token * width + columns, round_to(total, DTYPE), mask=inside)


@triton.jit
def _spread_kernel(
    GRAD,
    Y,
    WEIGHTS,
    TOKENS,
    DY,
    DOTS,
    width,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    token = tl.load(TOKENS + row)
    grad = tl.load(GRAD + token * width + columns, mask=inside, other=0.0).to(ACC)
    y = tl.load(Y + row * width + columns, mask=inside, other=0.0).to(ACC)
    weight = tl.load(WEIGHTS + row).to(ACC)
    tl.store(DOTS + row, tl.sum(grad * y, 0))
    dy = round_to(grad * weight, DTYPE)
    tl.store(DY + row * width + columns, dy, mask=inside)


def sum_rows(y_NH: Tensor, weights_TK: Tensor | None, row_TK: Tensor) -> Tensor:
    """Returns the sum of each token's rows, weighted if there are weights.

    Args:
        y_NH: Rows in the order of experts.
        weights_TK: The weights of the assignments, or None.
        row_TK: The row of each assignment.
    """
    num_tokens, top_k = row_TK.shape
    width = y_NH.shape[1]
    out_TH = y_NH.new_empty(num_tokens, width)
    block = max(16, int(triton.next_power_of_2(width)))
    if out_TH.numel():
        with on_device_of(y_NH):
            _sum_kernel[(num_tokens,)](
                y_NH.contiguous(),
                None if weights_TK is None else weights_TK.contiguous(),
                row_TK.contiguous(),
                out_TH,
                width,
                TOP_K=top_k,
                HAS_WEIGHTS=weights_TK is not None,
                DTYPE=TRITON_DTYPES[y_NH.dtype],
                ACC=TRITON_DTYPES[accumulation_dtype(y_NH.dtype)],
                BLOCK=block,
                num_warps=num_warps(block),
                enable_fp_fusion=True,
            )
    return out_TH


def spread_rows(
    grad_TH: Tensor, y_NH: Tensor, weights_N: Tensor, token_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of rows, and of their weights: the backward of a sum.

    Args:
        grad_TH: The gradient of the tokens' sums.
        y_NH: The rows that were summed.
        weights_N: The weight of each.
        token_N: The token of each.
    """
    num_rows, width = y_NH.shape
    dy_NH = y_NH.new_empty(num_rows, width)
    dots_N = weights_N.new_empty(num_rows)
    block = max(16, int(triton.next_power_of_2(width)))
    if num_rows:
        with on_device_of(y_NH):
            _spread_kernel[(num_rows,)](
                grad_TH.contiguous(),
                y_NH.contiguous(),
                weights_N.contiguous(),
                token_N.contiguous(),
                dy_NH,
                dots_N,
                width,
                DTYPE=TRITON_DTYPES[y_NH.dtype],
                ACC=TRITON_DTYPES[accumulation_dtype(y_NH.dtype)],
                BLOCK=block,
                num_warps=num_warps(block),
                enable_fp_fusion=True,
            )
    return dy_NH, dots_N
