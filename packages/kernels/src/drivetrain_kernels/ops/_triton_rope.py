"""The Triton kernel of rotary embeddings: all heads of a token in one program.

The backward is the same kernel with the angle turned round.

Importing this module imports Triton.
"""

# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._fast_path import fast_path, run
from drivetrain_kernels._triton_blocks import (
    TRITON_DTYPES,
    num_warps,
    on_device_of,
    round_to,
)


@triton.jit
def _kernel(
    X,
    COS,
    SIN,
    OUT,
    token_stride,
    head_stride,
    num_heads,
    head_dim,
    half,
    num_table_rows,
    INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr,
    HAS_REST: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, HEADS)[:, None].to(tl.int64)
    columns = tl.arange(0, HALF)
    in_table = columns < half
    table = token % num_table_rows * half + columns
    cos = tl.load(COS + table, mask=in_table, other=0.0).to(ACC)[None, :]
    sin = tl.load(SIN + table, mask=in_table, other=0.0).to(ACC)[None, :]
    if INVERSE:
        sin = -sin
    if INTERLEAVED:
        first, second = 2 * columns, 2 * columns + 1
    else:
        first, second = columns, columns + half
    inside = (heads < num_heads) & in_table[None, :]
    source = X + token * token_stride + heads * head_stride
    target = OUT + (token * num_heads + heads) * head_dim
    x1 = tl.load(source + first[None, :], mask=inside, other=0.0).to(ACC)
    x2 = tl.load(source + second[None, :], mask=inside, other=0.0).to(ACC)
    y1 = round_to(x1 * cos - x2 * sin, DTYPE)
    y2 = round_to(x2 * cos + x1 * sin, DTYPE)
    tl.store(target + first[None, :], y1, mask=inside)
    tl.store(target + second[None, :], y2, mask=inside)
    if HAS_REST:
        rest = 2 * half + tl.arange(0, REST)[None, :]
        inside = (heads < num_heads) & (rest < head_dim)
        tl.store(target + rest, tl.load(source + rest, mask=inside), mask=inside)


def _run(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> Tensor:
    """Returns queries or keys with their pairs of columns rotated.

    Args:
        x: `(..., H, D)`.
        cos: `(..., R/2)`, contiguous; repeated over what stands before it in `x`.
        sin: Likewise.
        interleaved: Whether neighbouring columns are a pair.
        inverse: Whether they are turned back.
    """
    out = x.new_empty(x.shape)
    if x.numel() == 0:
        return out
    num_heads, head_dim = x.shape[-2:]
    tokens = x.reshape(-1, num_heads, head_dim)
    if tokens.stride(-1) != 1:
        tokens = tokens.contiguous()
    half = cos.shape[-1]
    heads_block = triton.next_power_of_2(num_heads)
    half_block = triton.next_power_of_2(half)
    with on_device_of(x):
        _kernel[(tokens.shape[0],)](
            tokens,
            cos,
            sin,
            out,
            tokens.stride(0),
            tokens.stride(1),
            num_heads,
            head_dim,
            half,
            cos.numel() // half,
            INTERLEAVED=interleaved,
            INVERSE=inverse,
            HAS_REST=2 * half < head_dim,
            DTYPE=TRITON_DTYPES[x.dtype],
            ACC=TRITON_DTYPES[accumulation_dtype(x.dtype)],
            HEADS=heads_block,
            HALF=half_block,
            REST=triton.next_power_of_2(max(1, head_dim - 2 * half)),
            num_warps=num_warps(heads_block * half_block),
            enable_fp_fusion=True,
        )
    return out


_rotate = torch.library.custom_op("drivetrain_kernels::rope", _run, mutates_args=())


@_rotate.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    del cos, sin, interleaved, inverse
    return x.new_empty(x.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    _, cos, sin, ctx.interleaved, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    cos, sin = ctx.saved_tensors
    given = (grad, cos, sin, ctx.interleaved, not ctx.inverse)
    return run(_rotate, _run, *given), None, None, None, None


rotate = fast_path(_rotate, _run, backward=_backward, setup_context=_keep)
