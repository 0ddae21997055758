"""Sharpness: the largest eigenvalue of the Hessian of a model's loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


def largest_eigenvalue(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    tolerance: float = 1e-3,
    max_products: int = 60,
) -> float:
    """Returns the largest eigenvalue of a symmetric matrix, by power iteration.

    The iteration finds the eigenvalue of largest magnitude. If that is a negative one,
    the matrix is shifted by it and the iteration runs again.

    Args:
        product: Multiplies the matrix with a vector.
        start: The first vector, not zero.
        tolerance: Relative change between two estimates at which it ends.
        max_products: Products at which each iteration ends at the latest.

    Example:
        >>> matrix = torch.diag(torch.tensor([-3.0, 1.0, 2.0]))
        >>> round(largest_eigenvalue(lambda v: matrix @ v, torch.ones(3)), 1)
        2.0
    """
    value = _dominant(product, start, tolerance, max_products)
    if value >= 0:
        return value
    shift = -value
    shifted = _dominant(
        lambda vector: product(vector) + shift * vector,
        start,
        # An eigenvalue may be far smaller than the shift that is taken off again.
        tolerance / 10,
        max_products,
    )
    return shifted - shift


def _dominant(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    tolerance: float,
    max_products: int,
) -> float:
    vector = start / start.norm()
    value = math.nan
    for _ in range(max_products):
        image = product(vector)
        before, value = value, float(vector @ image)
        norm = image.norm()
        if norm == 0 or abs(value - before) <= tolerance * abs(value):
            break
        vector = image / norm
    return value


def sharpness(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], *, seed: int = 0
) -> float:
    """Returns the largest eigenvalue of the Hessian of a loss at a model's parameters.

    The model is in evaluation mode meanwhile, so that BatchNorm's statistics are
    constants.

    Args:
        model: Its trainable parameters are the variables.
        loss: Takes the model and returns the loss.
        seed: Of the random first vector.
    """
    was_training = model.training
    model.eval()
    params = [param for param in model.parameters() if param.requires_grad]
    grads = torch.autograd.grad(loss(model), params, create_graph=True)
    grad = torch.cat([part.flatten() for part in grads])

    def product(vector: Tensor) -> Tensor:
        parts = torch.autograd.grad(grad, params, vector, retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(grad.numel(), generator=generator).to(grad)
    try:
        return largest_eigenvalue(product, start)
    finally:
        model.train(was_training)
