"""A function of one tensor with a gradient of its own, where autograd's will not do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class _CustomGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        forward: Callable[[Tensor], Tensor],
        backward: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.of_gradient = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.of_gradient(grads[0]), None, None


def custom_gradient(
    x: Tensor,
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Tensor], Tensor],
) -> Tensor:
    """Returns `forward(x)`, through which gradients go back by `backward`.

    Neither is recorded by autograd.

    Args:
        x: The only argument that has a gradient.
        forward: Returns a tensor other than `x` itself; a view of it will do.
        backward: Returns the gradient of `x` for that of the result. It must not keep
            tensors alive: it is kept with the graph.

    Example:
        >>> x = torch.tensor(2.0, requires_grad=True)
        >>> custom_gradient(x, torch.clone, lambda grad: 3 * grad).backward()
        >>> x.grad
        tensor(3.)
    """
    found: Tensor = _CustomGradient.apply(x, forward, backward)  # type: ignore[no-untyped-call]
    return found
