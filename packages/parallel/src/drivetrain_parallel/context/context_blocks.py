"""Makes the blocks of a model run on this rank's part of the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from drivetrain_core.extending import Forward, wrap_forward
from drivetrain_parallel.context.ulysses import (
    SharedAttention,
    gather_sequence,
    scatter_sequence,
    sizes_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from drivetrain_parallel.collective_channel import CollectiveChannel

_DIM = 1


class _Length:
    """How many positions the sequence has that is in the blocks now."""

    def __init__(self) -> None:
        self.whole = 0


def share_sequence(
    blocks: Sequence[nn.Module],
    exchange: CollectiveChannel,
    hidden: str,
    split: Mapping[str, int],
    *,
    receives: bool = False,
) -> None:
    """Changes blocks in place: the first splits the hidden state, the last joins it.

    Gradients of all parameters must be averaged over the ranks of the axis.

    Args:
        blocks: In the order in which they run.
        exchange: The axis.
        hidden: The key of the hidden state among a block's arguments.
        split: The dimension of the positions in other arguments, by key.
        receives: Whether the hidden state comes from another stage of a pipeline.
    """
    length = _Length()
    last = len(blocks) - 1
    for index, block in enumerate(blocks):
        wrap_forward(
            block,
            _sharing(
                exchange,
                length,
                split,
                hidden if index == 0 else "",
                scatter_sequence if receives else _own_part,
                joins=index == last,
            ),
        )


def _sharing(
    exchange: CollectiveChannel,
    length: _Length,
    split: Mapping[str, int],
    hidden: str,
    take: Callable[..., torch.Tensor],
    *,
    joins: bool,
) -> Any:
    def around(forward: Forward) -> Forward:
        def run(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            leaves, spec = pytree.tree_flatten_with_path((args, kwargs))
            keyed = [(pytree.keystr(path), leaf) for path, leaf in leaves]
            if hidden:
                length.whole = dict(keyed)[hidden].shape[_DIM]
            sizes = sizes_of(length.whole, exchange.size)
            parts = []
            for key, leaf in keyed:
                if key == hidden:
                    parts.append(take(leaf, exchange, _DIM, sizes))
                elif key in split and isinstance(leaf, torch.Tensor):
                    parts.append(_own_part(leaf, exchange, split[key], sizes))
                else:
                    parts.append(leaf)
            own_args, own_kwargs = pytree.tree_unflatten(parts, spec)
            with SharedAttention(exchange, sizes):
                out = forward(self, *own_args, **own_kwargs)
            return _joined(out, exchange, sizes) if joins else out

        return run

    return around


def _own_part(
    tensor: torch.Tensor, exchange: CollectiveChannel, dim: int, sizes: list[int]
) -> torch.Tensor:
    return torch.split(tensor, sizes, dim)[exchange.rank]


def _joined(out: Any, exchange: CollectiveChannel, sizes: list[int]) -> Any:
    if isinstance(out, torch.Tensor):
        return gather_sequence(out, exchange, _DIM, sizes)
    first, *rest = out
    return type(out)((gather_sequence(first, exchange, _DIM, sizes), *rest))
