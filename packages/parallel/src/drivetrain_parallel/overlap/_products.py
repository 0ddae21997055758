"""The products of overlapped communication, and their gradients."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from drivetrain_parallel.overlap._exchange import sum_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_parallel.overlap._exchange import RowExchange

_Gradients = tuple["torch.Tensor | None", ...]


def _without_autocast(
    backward: Callable[[Any, torch.Tensor], _Gradients],
) -> Callable[[Any, torch.Tensor], _Gradients]:
    """Returns a backward whose products keep the types of its forward.

    Under autocast they would have another one, and messages another length than what
    receives them.
    """

    @wraps(backward)
    def run(ctx: Any, grad: torch.Tensor) -> _Gradients:
        with torch.autocast(grad.device.type, enabled=False):
            return backward(ctx, grad)

    return run


class GatherProduct(torch.autograd.Function):
    """Gathers rows and multiplies them; in the backward, scatters what comes back.

    Tensors are matrices, and the rows are contiguous.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        exchange: RowExchange,
        save_gathered: bool,
    ) -> torch.Tensor:
        """Multiplies each chunk as soon as it is there."""
        total = exchange.rows.total
        into = x.new_empty(total, x.shape[1]) if save_gathered else None
        result = x.new_empty(total, weight.shape[0])
        for chunk, rows in exchange.gather(x, into):
            _multiply(rows, weight, bias, result[chunk])
        ctx.save_for_backward(x if into is None else into, weight)
        ctx.exchange, ctx.is_gathered = exchange, save_gathered
        return result

    @staticmethod
    @once_differentiable
    @_without_autocast
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Overlaps the sum of x's gradient, and the second gathering of x."""
        x, weight = ctx.saved_tensors
        exchange: RowExchange = ctx.exchange
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        if needs_x:
            grad_x = exchange.reduce_scatter(lambda at: grad[at] @ weight, weight)
        if needs_weight and ctx.is_gathered:
            grad_weight = grad.t() @ x
        elif needs_weight:
            add, grad_weight_of = _summed_weight(weight)
            for chunk, rows in exchange.gather(x):
                add(grad[chunk], rows)
            grad_weight = grad_weight_of()
        if needs_bias:
            grad_bias = grad.sum(0)
        return grad_x, grad_weight, grad_bias, None, None


class ScatterProduct(torch.autograd.Function):
    """Multiplies rows and scatters their sum; in the backward, gathers what comes back.

    Tensors are matrices, and the rows are contiguous.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        exchange: RowExchange,
    ) -> torch.Tensor:
        """Sends each chunk of the product as soon as it is made."""
        like = x.new_empty(0, weight.shape[0])
        result = exchange.reduce_scatter(lambda at: x[at] @ weight.t(), like)
        if bias is not None:
            result += bias
        ctx.save_for_backward(x, weight)
        ctx.exchange = exchange
        return result

    @staticmethod
    @once_differentiable
    @_without_autocast
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Uses each chunk of the gathered gradient for both products, as it comes."""
        x, weight = ctx.saved_tensors
        exchange: RowExchange = ctx.exchange
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_x = grad_weight = None
        add, grad_weight_of = _summed_weight(weight)
        if needs_x:
            grad_x = torch.empty_like(x)
        if needs_x or needs_weight:
            for chunk, rows in exchange.gather(grad.contiguous()):
                if grad_x is not None:
                    torch.mm(rows, weight, out=grad_x[chunk])
                if needs_weight:
                    add(rows, x[chunk])
        if needs_weight:
            grad_weight = grad_weight_of()
        return grad_x, grad_weight, grad.sum(0) if needs_bias else None, None


def _multiply(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


def _summed_weight(
    weight: torch.Tensor,
) -> tuple[Callable[[torch.Tensor, torch.Tensor], None], Callable[[], torch.Tensor]]:
    """Returns what adds a chunk's share to a weight's gradient, and what returns it.

    PhaseShares of 16-bit types are added in float32, or each addition would be rounded.
    """
    total: torch.Tensor | None = None

    def add(grad: torch.Tensor, rows: torch.Tensor) -> None:
        nonlocal total
        if total is None:
            total = (grad.t() @ rows).to(sum_dtype(weight.dtype))
        elif total.dtype == weight.dtype:
            total.addmm_(grad.t(), rows)
        else:
            total += grad.t() @ rows

    def result() -> torch.Tensor:
        if total is None:
            return torch.zeros_like(weight)
        return total.to(weight.dtype)

    return add, result
