"""Grouped GEMM: rows in groups, each group times a matrix of its own.

    y[n] = x[n] W[e]^T   for the rows n of group e

Two forms: `grouped_mm` of torch, one kernel for all groups, and a call of torch's GEMM
for each group that is not empty, which writes into one result. The second has to know
the sizes of the groups on the host, for which a GPU is waited for.

Shapes: N rows, E groups, I columns in, O columns out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from drivetrain_kernels._fast_path import first_order

if TYPE_CHECKING:
    from collections.abc import Callable


# As operators of their own, since torch traces its grouped one in bfloat16 only.
@torch.library.custom_op("drivetrain_kernels::grouped_gemm", mutates_args=())
def grouped_gemm(x_NI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
    """Returns the product by torch's own grouped operator.

    Args:
        x_NI: Rows, in the order of their groups.
        weight_EOI: A matrix for each group.
        ends_E: Where each group's rows end, int32.
    """
    return functional.grouped_mm(
        x_NI.contiguous(), weight_EOI.contiguous().transpose(1, 2), offs=ends_E
    )


@torch.library.custom_op("drivetrain_kernels::grouped_gemm_backward", mutates_args=())
def _grouped_gemm_backward(
    grad_NO: Tensor, x_NI: Tensor, weight_EOI: Tensor, ends_E: Tensor
) -> tuple[Tensor, Tensor]:
    grad_NO, x_NI = grad_NO.contiguous(), x_NI.contiguous()
    grad_x_NI = functional.grouped_mm(grad_NO, weight_EOI.contiguous(), offs=ends_E)
    grad_weight_EOI = functional.grouped_mm(grad_NO.t(), x_NI, offs=ends_E)
    return grad_x_NI, grad_weight_EOI


@torch.library.custom_op("drivetrain_kernels::split_gemm", mutates_args=())
def split_gemm(x_NI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
    """Returns the product by one GEMM for each group that is not empty.

    Args:
        x_NI: Rows, in the order of their groups.
        weight_EOI: A matrix for each group.
        ends_E: Where each group's rows end.
    """
    out_NO = x_NI.new_empty(x_NI.shape[0], weight_EOI.shape[1])
    for group, first, end in _groups(ends_E):
        torch.mm(x_NI[first:end], weight_EOI[group].t(), out=out_NO[first:end])
    return out_NO


@torch.library.custom_op("drivetrain_kernels::split_gemm_backward", mutates_args=())
def _split_gemm_backward(
    grad_NO: Tensor, x_NI: Tensor, weight_EOI: Tensor, ends_E: Tensor
) -> tuple[Tensor, Tensor]:
    grad_x_NI = x_NI.new_empty(x_NI.shape)
    grad_weight_EOI = weight_EOI.new_empty(weight_EOI.shape)
    places = {group: (first, end) for group, first, end in _groups(ends_E)}
    for group, weight_OI in enumerate(weight_EOI):
        first, end = places.get(group, (0, 0))
        rows_NO = grad_NO[first:end]
        if first == end:
            grad_weight_EOI[group].zero_()
            continue
        torch.mm(rows_NO, weight_OI, out=grad_x_NI[first:end])
        torch.mm(rows_NO.t(), x_NI[first:end], out=grad_weight_EOI[group])
    return grad_x_NI, grad_weight_EOI


def _like_product(x_NI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
    del ends_E
    return x_NI.new_empty(x_NI.shape[0], weight_EOI.shape[1])


def _like_gradients(
    grad_NO: Tensor, x_NI: Tensor, weight_EOI: Tensor, ends_E: Tensor
) -> tuple[Tensor, Tensor]:
    del grad_NO, ends_E
    return x_NI.new_empty(x_NI.shape), weight_EOI.new_empty(weight_EOI.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _with_gradients(backward: Callable[..., tuple[Tensor, Tensor]]) -> Any:
    def run(ctx: Any, grad_NO: Tensor) -> tuple[Tensor, Tensor, None]:
        return *backward(grad_NO, *ctx.saved_tensors), None

    return run


for _product, _gradients in (
    (grouped_gemm, _grouped_gemm_backward),
    (split_gemm, _split_gemm_backward),
):
    _product.register_fake(_like_product)
    first_order(_gradients).register_fake(_like_gradients)
    _product.register_autograd(_with_gradients(_gradients), setup_context=_keep)


def _groups(ends_E: Tensor) -> list[tuple[int, int, int]]:
    """Returns number, first row and end of each group that has rows."""
    ends = ends_E.tolist()
    firsts = [0, *ends[:-1]]
    found = zip(range(len(ends)), firsts, ends, strict=True)
    return [one for one in found if one[1] < one[2]]
