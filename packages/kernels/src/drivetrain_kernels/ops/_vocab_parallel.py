"""A vocabulary that lies in shards over the ranks of a process group.

The ranks hold consecutive rows of the head's weight, in the order of their ranks; shards
may differ in size. All ranks hold the same tokens (Shoeybi et al. 2019, section 3,
https://arxiv.org/abs/1909.08053).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Shard:
    """This rank's rows of the vocabulary, and the reductions over all of them.

    Without a group the shard is the whole vocabulary, and reductions leave values alone.

    Args:
        group: The process group, or None.
        num_rows: The number of classes that this rank holds.
        device: Where the tensors lie.
    """

    def __init__(
        self, group: ProcessGroup | None, num_rows: int, device: torch.device
    ) -> None:
        self.group = group
        self.num_rows = num_rows
        self.start: Tensor | int = 0
        self.num_classes: Tensor | int = num_rows
        if group is not None:
            # Sizes stay on the device: reading them would make the host wait for it.
            mine = torch.tensor([num_rows], device=device)
            sizes = mine.new_empty(dist.get_world_size(group))
            dist.all_gather_into_tensor(sizes, mine, group=group)
            self.start = sizes[: dist.get_rank(group)].sum()
            self.num_classes = sizes.sum()

    def owned(self, target: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows of targets, and whether each is counted and held here."""
        local = target - self.start
        is_here = counts & (local >= 0) & (local < self.num_rows)
        return torch.where(is_here, local, 0), is_here

    def counted(self, losses: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        """Returns losses, zero for tokens that do not count, NaN for no known class."""
        is_known = (target >= 0) & (target < self.num_classes)
        losses = torch.where(is_known, losses, torch.nan)
        return torch.where(counts, losses, 0.0)

    def max_(self, values: Tensor) -> Tensor:
        """Takes the largest over the ranks, in place."""
        if self.group is not None:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
        return values

    def sum_(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Returns sums over the ranks, of tensors of one shape, in one reduction."""
        if self.group is None:
            return values
        packed = torch.stack(values)
        dist.all_reduce(packed, group=self.group)
        return packed.unbind()

    def total_(self, values: Tensor) -> Tensor:
        """Sums over the ranks, in place."""
        if self.group is not None:
            dist.all_reduce(values, group=self.group)
        return values


def shard_of(group_name: str, num_rows: int, device: torch.device) -> Shard:
    """Returns the shard of this rank in a group that is named; "" means no group."""
    if not group_name:
        return Shard(None, num_rows, device)
    resolve: Any = dist.distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
    group: ProcessGroup = resolve(group_name)
    return Shard(group, num_rows, device)


class _CopyToShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.shard.total_(grad.clone()), None


class _SumOverShards(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, shard: Shard) -> Tensor:
        return shard.total_(values.clone())

    @staticmethod
    def setup_context(*_: Any) -> None:
        """Keeps nothing: the gradient needs nothing."""

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def copy_to_shards(values: Tensor, shard: Shard) -> Tensor:
    """Returns the values that every rank holds; their gradient is summed over ranks."""
    result: Tensor = _CopyToShards.apply(values, shard)  # type: ignore[no-untyped-call]
    return result


def sum_over_shards(values: Tensor, shard: Shard) -> Tensor:
    """Returns values summed over the ranks; all ranks hold one gradient of the sum."""
    result: Tensor = _SumOverShards.apply(values, shard)  # type: ignore[no-untyped-call]
    return result
