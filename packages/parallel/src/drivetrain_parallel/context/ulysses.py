"""Attention over a sequence that ranks share: heads are exchanged for positions.

Before the attention each rank gives away the heads of its own positions and gets all
positions of its own heads; after it, the other way round. The attention itself is the
unchanged kernel on whole sequences. Source: DeepSpeed-Ulysses, arXiv 2309.14509,
section 3.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from drivetrain_core import Code, PlanError
from drivetrain_parallel.axis_rules import heads_of_rank
from drivetrain_parallel.custom_gradient import custom_gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from drivetrain_parallel.collective_channel import CollectiveChannel

_HEADS, _POSITIONS = -3, -2


def sizes_of(length: int, size: int) -> list[int]:
    """Returns how many positions each rank holds.

    Example:
        >>> sizes_of(17, 4)
        [5, 4, 4, 4]
    """
    each, more = divmod(length, size)
    return [each + (rank < more) for rank in range(size)]


def _swap(
    tensor: Tensor,
    exchange: CollectiveChannel,
    split: tuple[int, list[int]],
    join: tuple[int, list[int]],
) -> Tensor:
    """Splits one dimension over the ranks, and joins another one that was split."""
    return custom_gradient(
        tensor,
        lambda x: _swapped(x, exchange, split, join),
        lambda grad: _swapped(grad, exchange, join, split),
    )


def _swapped(
    tensor: Tensor,
    exchange: CollectiveChannel,
    split: tuple[int, list[int]],
    join: tuple[int, list[int]],
) -> Tensor:
    (apart, own), (together, theirs) = split, join
    parts = [part.contiguous() for part in torch.split(tensor, own, apart)]
    shape = list(tensor.shape)
    shape[apart] = own[exchange.rank]
    shapes = []
    for number in theirs:
        shape[together] = number
        shapes.append(tuple(shape))
    return torch.cat(exchange.all_to_all(parts, shapes), together)


def _joined(
    tensor: Tensor, exchange: CollectiveChannel, dim: int, sizes: list[int]
) -> Tensor:
    shape = list(tensor.shape)
    shapes = []
    for number in sizes:
        shape[dim] = number
        shapes.append(tuple(shape))
    return torch.cat(exchange.all_gather(tensor.contiguous(), shapes), dim)


def scatter_sequence(
    tensor: Tensor, exchange: CollectiveChannel, dim: int, sizes: list[int]
) -> Tensor:
    """Returns this rank's positions of a state that came from another stage.

    That stage must get the gradient of the whole state on each rank, as the end of a
    model gives it, and not its own positions with nothing around them.

    Args:
        tensor: All positions, equal on the ranks.
        exchange: The axis.
        dim: The dimension of the positions.
        sizes: How many positions each rank has.
    """

    def forward(tensor: Tensor) -> Tensor:
        return torch.split(tensor, sizes, dim)[exchange.rank].clone()

    def backward(grad: Tensor) -> Tensor:
        return _joined(grad, exchange, dim, sizes) / exchange.size

    return custom_gradient(tensor, forward, backward)


def gather_sequence(
    tensor: Tensor, exchange: CollectiveChannel, dim: int, sizes: list[int]
) -> Tensor:
    """Returns the positions of all ranks, in order.

    The gradients of what comes before must be averaged over the ranks afterwards, as
    data parallel does; then they are those of the whole sequence.

    Args:
        tensor: The positions of this rank.
        exchange: The axis.
        dim: The dimension of the positions.
        sizes: How many positions each rank has.
    """

    def backward(grad: Tensor) -> Tensor:
        mine = torch.split(grad, sizes, dim)[exchange.rank]
        # Gradients are averaged over these ranks, and each has its own positions only.
        return mine * exchange.size

    return custom_gradient(tensor, lambda x: _joined(x, exchange, dim, sizes), backward)


class SharedAttention(TorchFunctionMode):
    """Inside, `scaled_dot_product_attention` sees whole sequences and its own heads.

    Args:
        exchange: The axis.
        sizes: How many positions each rank has.

    Attributes:
        calls: How often attention was called.
    """

    def __init__(self, exchange: CollectiveChannel, sizes: Sequence[int]) -> None:
        """Keeps the parts."""
        super().__init__()
        self._exchange = exchange
        self._sizes = list(sizes)
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs anything else as it is."""
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        self.calls += 1
        return self._attend(func, *args, **kwargs)

    def _attend(
        self,
        attention: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        mine = self._sizes[self._exchange.rank]
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if tensor.shape[_POSITIONS] != mine:
                raise PlanError(
                    Code.NOT_APPLICABLE,
                    "mesh",
                    because=f"context parallel shares {mine} positions with this rank, "
                    f"and the {name} of an attention has {tensor.shape[_POSITIONS]}",
                    fix="use context=1",
                )
        heads = query.shape[_HEADS]
        whole = [self._to_heads(tensor) for tensor in (query, key, value)]
        if attn_mask is not None:
            attn_mask = self._own_heads(attn_mask, heads)
        out = attention(*whole, attn_mask, *args, **kwargs)
        split = (out.dim() + _POSITIONS, self._sizes)
        join = (out.dim() + _HEADS, self._heads(heads))
        return _swap(out, self._exchange, split, join)

    def _heads(self, number: int) -> list[int]:
        size = self._exchange.size
        return [heads_of_rank(number, size)] * size

    def _to_heads(self, tensor: Tensor) -> Tensor:
        split = (tensor.dim() + _HEADS, self._heads(tensor.shape[_HEADS]))
        join = (tensor.dim() + _POSITIONS, self._sizes)
        return _swap(tensor, self._exchange, split, join)

    def _own_heads(self, mask: Tensor, heads: int) -> Tensor:
        if mask.dim() < 3 or mask.shape[_HEADS] != heads or heads == 1:
            return mask
        return torch.split(mask, self._heads(heads), _HEADS)[self._exchange.rank]
