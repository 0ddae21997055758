"""Runs the experts of a layer where they are: tokens go there, results come back.

Every rank of the axis has tokens of its own. They are gathered, each rank runs those that
one of its experts was chosen for, and what comes out is summed where the token came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from drivetrain_parallel.collective_channel import CollectiveChannel


class _GatherTokens(torch.autograd.Function):
    """Joins the tokens of all ranks; their gradients are summed where they came from."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, exchange: CollectiveChannel) -> Tensor:
        ctx.exchange = exchange
        return _gathered(tokens, exchange)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # The other half has divided by the size: here it is taken back.
        return _summed(gradients[0], ctx.exchange) * ctx.exchange.size, None


class _SumTokens(torch.autograd.Function):
    """Sums what all ranks found for each token, where the token came from."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, exchange: CollectiveChannel) -> Tensor:
        ctx.exchange = exchange
        return _summed(tokens, exchange)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # An expert sees the tokens of all ranks, and each rank's loss is a mean: what
        # data parallel averages for other parameters is averaged for experts here.
        return _gathered(gradients[0], ctx.exchange) / ctx.exchange.size, None


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
    every: Tensor = _GatherTokens.apply(tokens, exchange)  # type: ignore[no-untyped-call]
    share: Tensor = _GatherTokens.apply(weights, exchange)  # type: ignore[no-untyped-call]
    local = _gathered(index, exchange) - exchange.rank * num_local
    row, column = torch.where((local >= 0) & (local < num_local))
    # One row for each token and expert of this rank: no expert runs on what is not its.
    found = forward(
        every[row], local[row, column][:, None], share[row, column][:, None]
    )
    total = torch.zeros_like(every, dtype=found.dtype).index_add(0, row, found)
    mine: Tensor = _SumTokens.apply(total, exchange)  # type: ignore[no-untyped-call]
    return mine
