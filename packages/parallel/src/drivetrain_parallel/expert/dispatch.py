"""Runs the experts of a layer where they are: tokens go there, results come back.

Every rank of the axis has tokens of its own. They are gathered, each rank runs those that
one of its experts was chosen for, and what comes out is summed where the token came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_parallel.custom_gradient import custom_gradient

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from drivetrain_parallel.collective_channel import CollectiveChannel


def _gather_tokens(tokens: Tensor, exchange: CollectiveChannel) -> Tensor:
    """Joins the tokens of all ranks; their gradients are summed where they came from."""

    def backward(grad: Tensor) -> Tensor:
        # The other half has divided by the size: here it is taken back.
        return _summed(grad, exchange) * exchange.size

    return custom_gradient(tokens, lambda x: _gathered(x, exchange), backward)


def _sum_tokens(tokens: Tensor, exchange: CollectiveChannel) -> Tensor:
    """Sums what all ranks found for each token, where the token came from."""

    def backward(grad: Tensor) -> Tensor:
        # An expert sees the tokens of all ranks, and each rank's loss is a mean: what
        # data parallel averages for other parameters is averaged for experts here.
        return _gathered(grad, exchange) / exchange.size

    return custom_gradient(tokens, lambda x: _summed(x, exchange), backward)


def _gathered(tensor: Tensor, exchange: CollectiveChannel) -> Tensor:
    shapes = [tuple(tensor.shape)] * exchange.size
    return torch.cat(exchange.all_gather(tensor.contiguous(), shapes))


def _summed(tensor: Tensor, exchange: CollectiveChannel) -> Tensor:
    parts = [part.contiguous() for part in tensor.chunk(exchange.size)]
    shapes = [tuple(parts[exchange.rank].shape)] * exchange.size
    return torch.stack(exchange.all_to_all(parts, shapes)).sum(0)


def run_experts(
    forward: Callable[[Tensor, Tensor, Tensor], Tensor],
    exchange: CollectiveChannel,
    num_local: int,
    tokens: Tensor,
    index: Tensor,
    weights: Tensor,
) -> Tensor:
    """Returns what the experts of all ranks make of this rank's tokens.

    The gradients of the experts are averaged over the ranks, as if each rank had all
    experts and data parallel had averaged them.

    Args:
        forward: Runs this rank's experts on (tokens, index, weights).
        exchange: The axis.
        num_local: How many experts each rank has.
        tokens: This rank's, of shape (tokens, width); as many on each rank.
        index: The chosen experts of each, of shape (tokens, chosen).
        weights: What each result counts, of the same shape.

    Returns:
        The sum over the chosen experts, of the shape of the tokens.
    """
    every = _gather_tokens(tokens, exchange)
    share = _gather_tokens(weights, exchange)
    local = _gathered(index, exchange) - exchange.rank * num_local
    row, column = torch.where((local >= 0) & (local < num_local))
    # One row for each token and expert of this rank: no expert runs on what is not its.
    found = forward(
        every[row], local[row, column][:, None], share[row, column][:, None]
    )
    total = torch.zeros_like(every, dtype=found.dtype).index_add(0, row, found)
    return _sum_tokens(total, exchange)
