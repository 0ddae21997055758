# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Triton kernels of the softmax cross-entropy.

The forward reads a row of logits once, with the running maximum and sum of Milakov and
Gimelshein 2018 (https://arxiv.org/abs/1805.02867), and keeps the logarithm of the softmax's
denominator. The backward is elementwise, so that it may write over a buffer of its own
caller, but never over the logits that a user holds.

Importing this module imports Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._fast_path import fast_path, first_order, run
from drivetrain_kernels._triton_blocks import (
    TRITON_DTYPES,
    num_warps,
    on_device_of,
    round_to,
    tanh,
)

if TYPE_CHECKING:
    from drivetrain_kernels.ops._loss_options import LossOptions

MAX_BLOCK = 4096
# An H200 took 285 us for 4,096 rows of 128,256 classes, and 314 with twice as many.
_FORWARD_WARPS = 4


@triton.jit
def soft_capped(value, CAP: tl.constexpr):
    """Returns values within plus and minus a cap, through a hyperbolic tangent.

    Args:
        value: What is capped, float32 or float64.
        CAP: The bound.
    """
    return CAP * tanh(value / CAP)


@triton.jit
def _forward_kernel(
    LOGITS,
    TARGET,
    LOSS,
    Z_LOSS,
    LSE,
    row_stride,
    num_classes,
    ignore_index,
    SMOOTHING: tl.constexpr,
    ZETA: tl.constexpr,
    CAP: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = LOGITS + row * row_stride
    target = tl.load(TARGET + row)
    largest = tl.full([], -float("inf"), ACC)
    exp_sum = tl.full([], 0.0, ACC)
    plain_sum = tl.full([], 0.0, ACC)
    for first in range(0, num_classes, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < num_classes
        z = tl.load(start + column, mask=inside, other=0.0).to(ACC)
        if CAP > 0.0:
            z = soft_capped(z, CAP)
        if SMOOTHING > 0.0:
            plain_sum += tl.sum(z, 0)
        z = tl.where(inside, z, -float("inf"))
        new = tl.maximum(largest, tl.max(z, 0))
        # A row that has only minus infinity so far has nothing to subtract.
        base = tl.where(new == -float("inf"), 0.0, new)
        exp_sum = exp_sum * tl.exp(largest - base) + tl.sum(tl.exp(z - base), 0)
        largest = new
    lse = tl.where(largest == -float("inf"), 0.0, largest) + tl.log(exp_sum)
    in_range = (target >= 0) & (target < num_classes)
    chosen = tl.load(start + target, mask=in_range, other=0.0).to(ACC)
    if CAP > 0.0:
        chosen = soft_capped(chosen, CAP)
    loss = lse - (1.0 - SMOOTHING) * chosen
    if SMOOTHING > 0.0:
        loss -= SMOOTHING * plain_sum / tl.full([], num_classes, ACC)
    z_loss = ZETA * lse * lse
    loss += z_loss
    loss = tl.where(in_range, loss, float("nan"))
    counts = target != ignore_index
    tl.store(LOSS + row, tl.where(counts, loss, 0.0))
    tl.store(Z_LOSS + row, tl.where(counts, z_loss, 0.0))
    tl.store(LSE + row, lse)


@triton.jit
def _backward_kernel(
    GRAD,
    LOGITS,
    TARGET,
    LSE,
    OUT,
    grad_stride,
    row_stride,
    out_stride,
    num_classes,
    ignore_index,
    HAS_GRAD: tl.constexpr,
    SMOOTHING: tl.constexpr,
    ZETA: tl.constexpr,
    CAP: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_classes
    target = tl.load(TARGET + row)
    lse = tl.load(LSE + row)
    z = tl.load(LOGITS + row * row_stride + column, mask=inside, other=0.0).to(ACC)
    if CAP > 0.0:
        z = soft_capped(z, CAP)
    dz = tl.exp(z - lse) * (1.0 + 2.0 * ZETA * lse)
    if SMOOTHING > 0.0:
        dz -= SMOOTHING / tl.full([], num_classes, ACC)
    dz = tl.where(column == target, dz - (1.0 - SMOOTHING), dz)
    if CAP > 0.0:
        dz *= 1.0 - (z / CAP) * (z / CAP)
    if HAS_GRAD:
        dz *= tl.load(GRAD + row * grad_stride).to(ACC)
    dz = tl.where(target == ignore_index, 0.0, dz)
    tl.store(OUT + row * out_stride + column, round_to(dz, DTYPE), mask=inside)


def class_losses_of(
    logits: Tensor,
    target: Tensor,
    ignore_index: int,
    smoothing: float,
    zeta: float,
    cap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Launches the forward; returns losses, their z-losses, and log-denominators.

    Args:
        logits: Shape [num_rows, num_classes], with neighbouring columns.
        target: Shape [num_rows], int64; a loss with one out of range is NaN.
        ignore_index: The target of rows that count for nothing.
        smoothing: The share of the target that all classes divide.
        zeta: The weight of the z-loss.
        cap: The soft cap, 0 for none.
    """
    num_rows, num_classes = logits.shape
    results = _empty_losses(logits)
    if num_rows:
        block = _block(num_classes)
        with on_device_of(logits):
            _forward_kernel[(num_rows,)](
                logits,
                target,
                *results,
                logits.stride(0),
                num_classes,
                ignore_index,
                SMOOTHING=smoothing,
                ZETA=zeta,
                CAP=cap,
                ACC=TRITON_DTYPES[results[0].dtype],
                BLOCK=block,
                num_warps=min(_FORWARD_WARPS, num_warps(block)),
                enable_fp_fusion=True,
            )
    return results


def class_gradients_into(
    out: Tensor,
    grad: Tensor | None,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    ignore_index: int,
    smoothing: float,
    zeta: float,
    cap: float,
) -> None:
    """Launches the backward, which writes the gradient of the logits into `out`.

    Args:
        out: Of the shape of the logits; it may be the logits.
        grad: The gradient of each row's loss, of any stride; None for ones.
        logits: See `class_losses_of`.
        target: Likewise.
        lse: The rows' log-denominators.
        ignore_index: See `class_losses_of`.
        smoothing: Likewise.
        zeta: Likewise.
        cap: Likewise.
    """
    num_rows, num_classes = logits.shape
    if num_rows == 0:
        return
    block = _block(num_classes)
    with on_device_of(logits):
        _backward_kernel[(num_rows, triton.cdiv(num_classes, block))](
            grad,
            logits,
            target,
            lse,
            out,
            0 if grad is None else grad.stride(0),
            logits.stride(0),
            out.stride(0),
            num_classes,
            ignore_index,
            HAS_GRAD=grad is not None,
            SMOOTHING=smoothing,
            ZETA=zeta,
            CAP=cap,
            DTYPE=TRITON_DTYPES[out.dtype],
            ACC=TRITON_DTYPES[accumulation_dtype(logits.dtype)],
            BLOCK=block,
            num_warps=num_warps(block),
            enable_fp_fusion=True,
        )


def _block(num_classes: int) -> int:
    return min(MAX_BLOCK, max(16, int(triton.next_power_of_2(num_classes))))


def _empty_losses(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    losses = logits.new_empty(logits.shape[0], dtype=accumulation_dtype(logits.dtype))
    return losses, torch.empty_like(losses), torch.empty_like(losses)


_losses = torch.library.custom_op(
    "drivetrain_kernels::cross_entropy", class_losses_of, mutates_args=()
)


@_losses.register_fake
def _(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_losses(logits)


def _class_gradients(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    ignore_index: int,
    smoothing: float,
    zeta: float,
    cap: float,
) -> Tensor:
    out = logits.new_empty(logits.shape)
    numbers = (ignore_index, smoothing, zeta, cap)
    class_gradients_into(out, grad, logits, target, lse, *numbers)
    return out


_gradient = torch.library.custom_op(
    "drivetrain_kernels::cross_entropy_backward", _class_gradients, mutates_args=()
)


@first_order(_gradient).register_fake
def _(grad: Tensor, logits: Tensor, *_: Any) -> Tensor:
    del grad
    return logits.new_empty(logits.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:2], output[2])
    ctx.numbers = inputs[2:]


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    args = (grad, *ctx.saved_tensors, *ctx.numbers)
    return run(_gradient, _class_gradients, *args), *(None,) * 5


_call_losses = fast_path(
    _losses, class_losses_of, backward=_backward, setup_context=_keep
)


def cross_entropy_triton(
    logits: Tensor, target: Tensor, options: LossOptions
) -> tuple[Tensor, Tensor]:
    """Returns the loss of each token and the z-loss in it, by the kernels.

    Args:
        logits: Shape [..., num_classes].
        target: Shape [...], int64.
        options: How the loss is computed.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    losses, z_losses, _ = _call_losses(
        rows,
        target.reshape(-1),
        options.ignore_index,
        options.label_smoothing,
        options.z_loss,
        options.softcap or 0.0,
    )
    return losses.view(target.shape), z_losses.view(target.shape)
