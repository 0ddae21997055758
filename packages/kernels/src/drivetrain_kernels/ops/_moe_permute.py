"""Tokens sorted by their experts, and results brought back: gathers both ways.

Each assignment of a token to an expert has one row in the sorted order, so that the
backward of either direction is a gather by the inverse order. Nothing is added
atomically, and results do not depend on the order in which anything runs.

Shapes: T tokens, K assignments a token, N = T K rows in the order of experts, H width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._fast_path import first_order


class Order(NamedTuple):
    """A stable order of assignments by expert.

    Args:
        tokens: `(N,)`, the token of each row.
        rows: `(T, K)`, the row of each assignment: the inverse.
        ends: `(E,)`, where each expert's rows end, int32.
    """

    tokens: Tensor
    rows: Tensor
    ends: Tensor


def sort_by_expert(experts_TK: Tensor, counts_E: Tensor) -> Order:
    """Returns the order of assignments by expert; equal experts stay as they were.

    Args:
        experts_TK: The experts of each token.
        counts_E: How many assignments each expert has.

    Example:
        >>> order = sort_by_expert(torch.tensor([[1], [0], [1]]), torch.tensor([1, 2]))
        >>> order.tokens, order.rows.flatten(), order.ends
        (tensor([1, 0, 2]), tensor([1, 0, 2]), tensor([1, 3], dtype=torch.int32))
    """
    top_k = experts_TK.shape[1]
    order_N = experts_TK.flatten().argsort(stable=True)
    rows = torch.arange(order_N.numel(), device=order_N.device)
    # A scatter to places that all differ.
    row_N = torch.empty_like(order_N).scatter_(0, order_N, rows)
    ends_E = counts_E.cumsum(0).to(torch.int32)
    return Order(order_N // top_k, row_N.view(experts_TK.shape), ends_E)


def _kernels() -> Any:
    # Triton is an extra, which only those need who run its kernels.
    from drivetrain_kernels.ops import _triton_moe

    return _triton_moe


@torch.library.custom_op("drivetrain_kernels::permute", mutates_args=())
def gather_tokens(x_TH: Tensor, token_N: Tensor, row_TK: Tensor, fused: bool) -> Tensor:
    """Returns the token of each row.

    Args:
        x_TH: The tokens.
        token_N: See `Order`.
        row_TK: Likewise; the backward goes by it.
        fused: Whether the backward is a Triton kernel.
    """
    del row_TK, fused
    return x_TH.index_select(0, token_N)


@gather_tokens.register_fake
def _(x_TH: Tensor, token_N: Tensor, row_TK: Tensor, fused: bool) -> Tensor:
    del row_TK, fused
    return x_TH.new_empty(token_N.shape[0], x_TH.shape[1])


@torch.library.custom_op("drivetrain_kernels::sum_rows", mutates_args=())
def sum_rows(
    y_NH: Tensor, weights_TK: Tensor | None, row_TK: Tensor, fused: bool
) -> Tensor:
    """Returns the sum of each token's rows, weighted if there are weights.

    Args:
        y_NH: Rows in the order of experts.
        weights_TK: The weights of the assignments, or None.
        row_TK: See `Order`.
        fused: Whether a Triton kernel does it.
    """
    if fused:
        return _kernels().sum_rows(y_NH, weights_TK, row_TK)  # type: ignore[no-any-return]
    wide = accumulation_dtype(y_NH.dtype)
    total_TH = y_NH.new_zeros((row_TK.shape[0], y_NH.shape[1]), dtype=wide)
    for place, row_T in enumerate(row_TK.unbind(1)):
        part_TH = y_NH.index_select(0, row_T).to(wide)
        if weights_TK is None:
            total_TH += part_TH
        else:
            total_TH.addcmul_(part_TH, weights_TK[:, place, None])
    return total_TH.to(y_NH.dtype)


@first_order(sum_rows).register_fake
def _(y_NH: Tensor, weights_TK: Tensor | None, row_TK: Tensor, fused: bool) -> Tensor:
    del weights_TK, fused
    return y_NH.new_empty(row_TK.shape[0], y_NH.shape[1])


@torch.library.custom_op("drivetrain_kernels::spread_rows", mutates_args=())
def spread_rows(
    grad_TH: Tensor, y_NH: Tensor, weights_N: Tensor, token_N: Tensor, fused: bool
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of rows, and of their weights: the backward of a sum.

    Args:
        grad_TH: The gradient of the tokens' sums.
        y_NH: The rows that were summed.
        weights_N: The weight of each.
        token_N: See `Order`.
        fused: Whether a Triton kernel does it.
    """
    if fused:
        return _kernels().spread_rows(grad_TH, y_NH, weights_N, token_N)  # type: ignore[no-any-return]
    wide = weights_N.dtype
    grad_NH = grad_TH.index_select(0, token_N)
    dots_N = torch.linalg.vecdot(grad_NH.to(wide), y_NH.to(wide))
    return (grad_NH * weights_N[:, None]).to(y_NH.dtype), dots_N


@first_order(spread_rows).register_fake
def _(
    grad_TH: Tensor, y_NH: Tensor, weights_N: Tensor, token_N: Tensor, fused: bool
) -> tuple[Tensor, Tensor]:
    del grad_TH, token_N, fused
    return y_NH.new_empty(y_NH.shape), weights_N.new_empty(weights_N.shape)


@torch.library.custom_op("drivetrain_kernels::unpermute", mutates_args=())
def combine_rows(
    y_NH: Tensor, weights_TK: Tensor, token_N: Tensor, row_TK: Tensor, fused: bool
) -> Tensor:
    """Returns the weighted sum of each token's rows, and has a gradient.

    Args:
        y_NH: Rows in the order of experts.
        weights_TK: The weights of the assignments.
        token_N: See `Order`; the backward goes by it.
        row_TK: See `Order`.
        fused: Whether Triton kernels do it, forward and backward.
    """
    del token_N
    out: Tensor = sum_rows(y_NH, weights_TK, row_TK, fused)
    return out


@combine_rows.register_fake
def _(
    y_NH: Tensor, weights_TK: Tensor, token_N: Tensor, row_TK: Tensor, fused: bool
) -> Tensor:
    del weights_TK, token_N, fused
    return y_NH.new_empty(row_TK.shape[0], y_NH.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    *tensors, ctx.fused = inputs
    ctx.save_for_backward(*tensors)


def _gather_back(ctx: Any, grad_NH: Tensor) -> tuple[Tensor, None, None, None]:
    _, _, row_TK = ctx.saved_tensors
    return sum_rows(grad_NH, None, row_TK, ctx.fused), None, None, None


def _combine_back(ctx: Any, grad_TH: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    y_NH, weights_TK, token_N, row_TK = ctx.saved_tensors
    flat_N = weights_TK.flatten()
    weights_N = torch.empty_like(flat_N).scatter(0, row_TK.flatten(), flat_N)
    grad_NH, dots_N = spread_rows(grad_TH, y_NH, weights_N, token_N, ctx.fused)
    return grad_NH, dots_N[row_TK], None, None, None


gather_tokens.register_autograd(_gather_back, setup_context=_keep)
combine_rows.register_autograd(_combine_back, setup_context=_keep)


def permute(x_TH: Tensor, order: Order, *, fused: bool = False) -> Tensor:
    """Returns each token once for every assignment, in the order of experts.

    Args:
        x_TH: The tokens.
        order: From `sort_by_expert`.
        fused: Whether the backward is a Triton kernel.
    """
    out: Tensor = gather_tokens(x_TH, order.tokens, order.rows, fused)
    return out


def unpermute(
    y_NH: Tensor, weights_TK: Tensor, order: Order, *, fused: bool = False
) -> Tensor:
    """Returns the weighted sum of each token's rows.

    Args:
        y_NH: Rows in the order of experts.
        weights_TK: The weights of the assignments.
        order: From `sort_by_expert`.
        fused: Whether Triton kernels do it.
    """
    out: Tensor = combine_rows(y_NH, weights_TK, order.tokens, order.rows, fused)
    return out
