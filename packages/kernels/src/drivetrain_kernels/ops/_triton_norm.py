# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Triton kernels of the normalising ops: one row a program, one pass each way.

One pair of kernels serves RMSNorm and LayerNorm, each alone, after an addition, or
after dropout and an addition; what is off costs nothing, since it is compiled away.
With z the row that is normalised, u = z or z - mean(z), xh = u r, and c = dy (o + w):

    dz = r (c - xh mean(c xh) [- mean(c) for LayerNorm]) + what came for z itself
    dw = sum over rows of dy xh,  db = sum over rows of dy

Each program of the backward sums its rows into partial sums of its own, which one
addition joins: the order never changes, so neither do the bits.

Importing this module imports Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._fast_path import fast_path, first_order, run
from drivetrain_kernels._triton_blocks import (
    TRITON_DTYPES,
    keep_row,
    num_programs,
    num_warps,
    on_device_of,
    round_to,
)
from drivetrain_kernels.ops._philox import threshold

# Rows that are on their way while one is computed, and the shared memory they may take:
# two programs of it fit a multiprocessor of any GPU with asynchronous copies. An H200 took
# 60 us instead of 82 for the backward of 8,192 rows of 4,096 columns in bfloat16.
_STAGES, _STAGE_BYTES = 3, 49_152


@triton.jit
def _forward_kernel(
    X, RESIDUAL, WEIGHT, BIAS, SEED, Y, Z, MEAN, RSTD,
    x_stride, residual_stride, num_columns, num_kept_bits,
    EPS: tl.constexpr, OFFSET: tl.constexpr, KEEP_SCALE: tl.constexpr,
    LAYER: tl.constexpr, CAST_FIRST: tl.constexpr, ADDS: tl.constexpr,
    DROPS: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    DTYPE: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    z = tl.load(X + row * x_stride + columns, mask=inside, other=0.0).to(ACC)
    if DROPS:
        keep = keep_row(tl.load(SEED), row, num_kept_bits, BLOCK)
        z = tl.where(keep, z * KEEP_SCALE, 0.0)
    if ADDS:
        place = RESIDUAL + row * residual_stride + columns
        z += tl.load(place, mask=inside, other=0.0).to(ACC)
        kept = round_to(z, DTYPE)
        tl.store(Z + row * num_columns + columns, kept, mask=inside)
        z = kept.to(ACC)
    if LAYER:
        mean = tl.sum(z, 0) / num_columns
        z = tl.where(inside, z - mean, 0.0)
        tl.store(MEAN + row, mean)
    rstd = 1.0 / tl.sqrt(tl.sum(z * z, 0) / num_columns + EPS)
    tl.store(RSTD + row, rstd)
    y = z * rstd
    if CAST_FIRST:
        y = round_to(y, DTYPE).to(ACC)
    if HAS_WEIGHT:
        y *= tl.load(WEIGHT + columns, mask=inside, other=0.0).to(ACC) + OFFSET
    if HAS_BIAS:
        y += tl.load(BIAS + columns, mask=inside, other=0.0).to(ACC)
    tl.store(Y + row * num_columns + columns, round_to(y, DTYPE), mask=inside)


@triton.jit
def _backward_kernel(
    DY, DZ_IN, Z, WEIGHT, MEAN, RSTD, SEED, DZ, DX, DW, DB,
    z_stride, num_rows, num_columns, num_kept_bits,
    OFFSET: tl.constexpr, KEEP_SCALE: tl.constexpr, LAYER: tl.constexpr,
    CAST_FIRST: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, DTYPE: tl.constexpr,
    ACC: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    weight = tl.full([BLOCK], 1.0, ACC)
    if HAS_WEIGHT:
        weight = tl.load(WEIGHT + columns, mask=inside, other=0.0).to(ACC) + OFFSET
    dw = tl.zeros([BLOCK], ACC)
    db = tl.zeros([BLOCK], ACC)
    for number in tl.range(first, num_rows, tl.num_programs(0), num_stages=STAGES):
        # A plain int in the interpreter, a scalar of int32 in a kernel.
        row = tl.full([], number, tl.int64)
        at = row * num_columns + columns
        dy = tl.load(DY + at, mask=inside, other=0.0).to(ACC)
        u = tl.load(Z + row * z_stride + columns, mask=inside, other=0.0).to(ACC)
        rstd = tl.load(RSTD + row)
        if LAYER:
            u = tl.where(inside, u - tl.load(MEAN + row), 0.0)
        normed = u * rstd
        c = dy * weight
        dz = c - normed * (tl.sum(c * normed, 0) / num_columns)
        if LAYER:
            dz -= tl.sum(c, 0) / num_columns
        dz *= rstd
        if HAS_WEIGHT:
            if CAST_FIRST:
                normed = round_to(normed, DTYPE).to(ACC)
            dw += dy * normed
        if HAS_BIAS:
            db += dy
        if ADDS:
            dz += tl.load(DZ_IN + at, mask=inside, other=0.0).to(ACC)
        tl.store(DZ + at, round_to(dz, DTYPE), mask=inside)
        if DROPS:
            keep = keep_row(tl.load(SEED), row, num_kept_bits, BLOCK)
            dx = tl.where(keep, dz * KEEP_SCALE, 0.0)
            tl.store(DX + at, round_to(dx, DTYPE), mask=inside)
    place = first.to(tl.int64) * num_columns + columns
    if HAS_WEIGHT:
        tl.store(DW + place, dw, mask=inside)
    if HAS_BIAS:
        tl.store(DB + place, db, mask=inside)


def _run_forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    eps: float,
    offset: float,
    p: float,
    layer: bool,
    cast_first: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns normalised rows, the rows before that, and each row's mean and factor.

    Args:
        x: The rows.
        residual: Added to them, or None; the second result is then the sum.
        weight: Of one row, or None.
        bias: Likewise.
        seed: The key of the dropout's mask, or None for no dropout.
        eps: Added to the mean of the squares.
        offset: Added to the weight.
        p: The share that dropout drops.
        layer: Whether the mean is subtracted.
        cast_first: Whether rows are rounded before the weight.
    """
    results = _empty_results(x, residual, layer)
    y, z, mean, rstd = results
    if x.numel() == 0:
        return results
    x_rows = _rows(x)
    residual_rows = x_rows if residual is None else _rows(residual)
    num_rows, num_columns = x_rows.shape
    block = _block(num_columns)
    with on_device_of(x):
        _forward_kernel[(num_rows,)](
            x_rows,
            residual_rows,
            weight,
            bias,
            seed,
            y,
            z,
            mean,
            rstd,
            x_rows.stride(0),
            residual_rows.stride(0),
            num_columns,
            threshold(p),
            EPS=eps,
            OFFSET=offset,
            LAYER=layer,
            CAST_FIRST=cast_first,
            ADDS=residual is not None,
            HAS_BIAS=bias is not None,
            **_shared(x, weight, seed, p, block),
            enable_fp_fusion=True,
        )
    return results


_norm = torch.library.custom_op(
    "drivetrain_kernels::norm", _run_forward, mutates_args=()
)


@_norm.register_fake
def _(
    x: Tensor, residual: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *_, layer, _cast_first = rest
    return _empty_results(x, residual, layer)


def _run_backward(
    dy: Tensor,
    dz_in: Tensor | None,
    z: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    seed: Tensor | None,
    offset: float,
    p: float,
    layer: bool,
    cast_first: bool,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of the sum, of what was dropped from, weight and bias.

    Args:
        dy: The gradient of the normalised rows.
        dz_in: That of the rows before, or None.
        z: The rows before.
        weight: See `norm`.
        mean: Of each row; empty without `layer`.
        rstd: The factor of each row.
        seed: See `norm`.
        offset: Likewise.
        p: Likewise.
        layer: Likewise.
        cast_first: Likewise.
        has_bias: Whether there is a bias.
    """
    num_columns = z.shape[-1]
    num_rows = z.numel() // max(num_columns, 1)
    block = _block(num_columns)
    programs = num_programs(num_rows, num_warps(block), z.device)
    dz, dx, dw, db = _empty_gradients(z, weight, seed, has_bias, programs)
    if z.numel() == 0:
        return dz, dx, dw.zero_().sum(0), db.zero_().sum(0)
    z_rows = _rows(z)
    with on_device_of(z):
        _backward_kernel[(programs,)](
            dy.contiguous(),
            None if dz_in is None else dz_in.contiguous(),
            z_rows,
            weight,
            mean,
            rstd,
            seed,
            dz,
            dx,
            dw,
            db,
            z_rows.stride(0),
            num_rows,
            num_columns,
            threshold(p),
            OFFSET=offset,
            LAYER=layer,
            CAST_FIRST=cast_first,
            ADDS=dz_in is not None,
            HAS_BIAS=has_bias,
            STAGES=_num_stages(block * z.itemsize * (2 if dz_in is None else 3)),
            **_shared(z, weight, seed, p, block),
            enable_fp_fusion=True,
        )
    return dz, dx, dw.sum(0), db.sum(0)


_norm_backward = torch.library.custom_op(
    "drivetrain_kernels::norm_backward", _run_backward, mutates_args=()
)


@first_order(_norm_backward).register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _dy, _dz_in, z, weight, _mean, _rstd, seed, *_, has_bias = inputs
    dz, dx, dw, db = _empty_gradients(z, weight, seed, has_bias, 1)
    return dz, dx, dw.sum(0), db.sum(0)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, bias, seed, _, offset, p, layer, cast_first = inputs
    _, z, mean, rstd = output
    ctx.save_for_backward(x if residual is None else z, weight, bias, mean, rstd, seed)
    ctx.adds = residual is not None
    ctx.options = (offset, p, layer, cast_first)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    dy, dz_in = grads[:2]
    z, weight, bias, mean, rstd, seed = ctx.saved_tensors
    if dy is None:
        dy = torch.zeros_like(z)
    if not ctx.adds:
        dz_in = None
    has_bias = bias is not None
    given = (dy, dz_in, z, weight, mean, rstd, seed, *ctx.options, has_bias)
    dz, dx, dw, db = run(_norm_backward, _run_backward, *given)
    return (
        dz if seed is None else dx,
        dz if ctx.adds else None,
        None if weight is None else dw.to(weight.dtype),
        None if bias is None else db.to(bias.dtype),
        *(None,) * 6,
    )


norm = fast_path(_norm, _run_forward, backward=_backward, setup_context=_keep)


def _rows(x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _block(num_columns: int) -> int:
    return max(16, int(triton.next_power_of_2(num_columns)))


def _num_stages(row_bytes: int) -> int:
    """Returns how many rows' loads are under way, by what a row takes of them."""
    return _STAGES if (_STAGES - 1) * row_bytes <= _STAGE_BYTES else 1


def _shared(
    x: Tensor, weight: Tensor | None, seed: Tensor | None, p: float, block: int
) -> dict[str, Any]:
    """Returns the constants that both kernels take."""
    return {
        "KEEP_SCALE": 0.0 if p >= 1.0 else 1.0 / (1.0 - p),
        "DROPS": seed is not None,
        "HAS_WEIGHT": weight is not None,
        "DTYPE": TRITON_DTYPES[x.dtype],
        "ACC": TRITON_DTYPES[accumulation_dtype(x.dtype)],
        "BLOCK": block,
        "num_warps": num_warps(block),
    }


def _empty_results(
    x: Tensor, residual: Tensor | None, layer: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    acc = accumulation_dtype(x.dtype)
    rows = x.shape[:-1]
    y = x.new_empty(x.shape)
    z = x.new_empty(0 if residual is None else x.shape)
    mean = x.new_empty(rows if layer else 0, dtype=acc)
    return y, z, mean, x.new_empty(rows, dtype=acc)


def _empty_gradients(
    z: Tensor, weight: Tensor | None, seed: Tensor | None, has_bias: bool, programs: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    acc = accumulation_dtype(z.dtype)
    num_columns = z.shape[-1]
    dz = z.new_empty(z.shape)
    dx = z.new_empty(0 if seed is None else z.shape)
    dw = z.new_empty((programs, 0 if weight is None else num_columns), dtype=acc)
    db = z.new_empty((programs, num_columns if has_bias else 0), dtype=acc)
    return dz, dx, dw, db
