"""Triton kernels of the gated activations: h = act(gate) * up, and back.

With s the sigmoid, P and f the normal distribution and its density:

    SiLU   act = g s,     act' = s (1 + g (1 - s))
    GELU   act = g P(g),  act' = P(g) + g f(g)
    tanh   act = g (1 + t) / 2,  t = tanh(k (g + 0.044715 g^3)),  k = sqrt(2 / pi)

The backward computes the activation again, so that only gate and up are kept.

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
from drivetrain_kernels._fast_path import fast_path, first_order, run
from drivetrain_kernels._triton_blocks import (
    INTERPRETS,
    TRITON_DTYPES,
    on_device_of,
    round_to,
    sigmoid,
    tanh,
)

_BLOCK = 1024
_INTERPRETED_BLOCK = 8192


@triton.jit
def _act(g, KIND: tl.constexpr):
    """Returns the activation and its derivative."""
    if KIND == "silu":
        s = sigmoid(g)
        return g * s, s * (1.0 + g * (1.0 - s))
    if KIND == "none":
        share = 0.5 * (1.0 + tl.erf(g * 0.7071067811865476))
        density = 0.3989422804014327 * tl.exp(-0.5 * g * g)
        return g * share, share + g * density
    u = 0.7978845608028654 * (g + 0.044715 * g * g * g)
    t = tanh(u)  # inexact near 0, where 1 is added to it
    slope = 0.7978845608028654 * (1.0 + 0.134145 * g * g)
    return 0.5 * g * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * g * (1.0 - t * t) * slope


@triton.jit
def _place(num_columns, num_blocks, BLOCK: tl.constexpr):
    """Returns this program's row, its columns, and which of them are inside."""
    program = tl.program_id(0).to(tl.int64)
    columns = program % num_blocks * BLOCK + tl.arange(0, BLOCK)
    return program // num_blocks, columns, columns < num_columns


@triton.jit
def _forward_kernel(
    GATE,
    UP,
    OUT,
    gate_stride,
    up_stride,
    num_columns,
    num_blocks,
    KIND: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, columns, inside = _place(num_columns, num_blocks, BLOCK)
    g = tl.load(GATE + row * gate_stride + columns, mask=inside, other=0.0).to(ACC)
    u = tl.load(UP + row * up_stride + columns, mask=inside, other=0.0).to(ACC)
    act, _ = _act(g, KIND)
    out = round_to(act * u, DTYPE)
    tl.store(OUT + row * num_columns + columns, out, mask=inside)


@triton.jit
def _backward_kernel(
    DOUT,
    GATE,
    UP,
    DGATE,
    DUP,
    gate_stride,
    up_stride,
    num_columns,
    num_blocks,
    KIND: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, columns, inside = _place(num_columns, num_blocks, BLOCK)
    at = row * num_columns + columns
    dout = tl.load(DOUT + at, mask=inside, other=0.0).to(ACC)
    g = tl.load(GATE + row * gate_stride + columns, mask=inside, other=0.0).to(ACC)
    u = tl.load(UP + row * up_stride + columns, mask=inside, other=0.0).to(ACC)
    act, slope = _act(g, KIND)
    tl.store(DGATE + at, round_to(dout * u * slope, DTYPE), mask=inside)
    tl.store(DUP + at, round_to(dout * act, DTYPE), mask=inside)


def _run_forward(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    """Returns `act(gate) * up`.

    Args:
        gate: Any shape.
        up: Of the same shape and dtype.
        kind: "silu", or of GELU "none" or "tanh".
    """
    out = gate.new_empty(gate.shape)
    if gate.numel():
        gates, ups = _rows(gate, up)
        _launch(_forward_kernel, gates, ups, (gates, ups, out), kind)
    return out


_gated = torch.library.custom_op(
    "drivetrain_kernels::gated", _run_forward, mutates_args=()
)


@_gated.register_fake
def _(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    del up, kind
    return gate.new_empty(gate.shape)


def _run_backward(
    dout: Tensor, gate: Tensor, up: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of gate and up.

    Args:
        dout: The gradient of the result.
        gate: See `gated`.
        up: Likewise.
        kind: Likewise.
    """
    dgate, dup = gate.new_empty(gate.shape), up.new_empty(up.shape)
    if gate.numel():
        gates, ups = _rows(gate, up)
        tensors = (dout.contiguous(), gates, ups, dgate, dup)
        _launch(_backward_kernel, gates, ups, tensors, kind)
    return dgate, dup


_gated_backward = torch.library.custom_op(
    "drivetrain_kernels::gated_backward", _run_backward, mutates_args=()
)


@first_order(_gated_backward).register_fake
def _(dout: Tensor, gate: Tensor, up: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    del dout, kind
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    gate, up, ctx.kind = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, None]:
    given = (dout, *ctx.saved_tensors, ctx.kind)
    dgate, dup = run(_gated_backward, _run_backward, *given)
    return dgate, dup, None


gated = fast_path(_gated, _run_forward, backward=_backward, setup_context=_keep)


def _rows(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both as rows; one long row if nothing lies between their elements."""
    if gate.is_contiguous() and up.is_contiguous():
        return gate.view(1, -1), up.view(1, -1)
    width = gate.shape[-1]
    return _near(gate.reshape(-1, width)), _near(up.reshape(-1, width))


def _near(rows: Tensor) -> Tensor:
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _launch(
    kernel: Any, gates: Tensor, ups: Tensor, tensors: tuple[Tensor, ...], kind: str
) -> None:
    num_rows, num_columns = gates.shape
    block = _INTERPRETED_BLOCK if INTERPRETS.value else _BLOCK
    num_blocks = triton.cdiv(num_columns, block)
    with on_device_of(gates):
        kernel[(num_rows * num_blocks,)](
            *tensors,
            gates.stride(0),
            ups.stride(0),
            num_columns,
            num_blocks,
            KIND=kind,
            DTYPE=TRITON_DTYPES[gates.dtype],
            ACC=TRITON_DTYPES[accumulation_dtype(gates.dtype)],
            BLOCK=block,
            enable_fp_fusion=True,
        )
