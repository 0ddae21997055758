"""Norms over tensors that may be split over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_optim.fused import _native, _triton

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from drivetrain_optim.batched._batch import Batch
    from drivetrain_optim.batched._work import Work

Shards = tuple[Any, tuple[int, ...]]
"""A mesh and its dimensions over which a tensor is split."""


class ShardSlots:
    """The places of all sharded parameters of an optimizer in what ranks exchange.

    They follow from the parameters alone, never from which of them have a gradient or
    how they are batched, so that all ranks exchange the same numbers in the same order.

    Args:
        params: The parameters of all groups, with how each is split; None for whole.
        device: Where the numbers lie.
    """

    def __init__(self, params: Iterable[tuple[Shards | None, torch.device]]) -> None:
        """Numbers the sharded parameters of each mesh."""
        self._slots: dict[Shards, dict[int, int]] = {}
        self._devices: dict[Shards, torch.device] = {}
        for index, (shards, device) in enumerate(params):
            if shards is not None and shards[1]:
                slots = self._slots.setdefault(shards, {})
                slots[index] = len(slots)
                self._devices.setdefault(shards, device)

    def sum_squares(self, parts: Sequence[tuple[Batch, Tensor]]) -> list[Tensor]:
        """Returns sums of squares over whole parameters, one all-reduce for each mesh.

        Every rank must call it, also one that has no part.

        Args:
            parts: Batches, and this rank's sums for each of their parameters, (n, k)
                with the same k for all.
        """
        sums = [part for _, part in parts]
        for shards, slots in self._slots.items():
            packed = torch.zeros(
                (len(slots), 2), dtype=torch.float64, device=self._devices[shards]
            )
            places = []
            for position, (batch, part) in enumerate(parts):
                if batch.kind.sharded == shards:
                    rows = [slots[entry.index] for entry in batch.entries]
                    where = torch.tensor(rows, device=packed.device)
                    packed[where] = part.to(packed)
                    places.append((position, where))
            self._reduce(shards, packed)
            for position, where in places:
                sums[position] = packed[where]
        return sums

    def sums_by_mesh(self, totals: Mapping[Shards, Tensor]) -> list[Tensor]:
        """Returns for each mesh the sum of numbers of which each rank has a share.

        Every rank must call it; a mesh of which it has no number counts as 0.
        """
        found = []
        for shards in self._slots:
            total = torch.zeros((), dtype=torch.float64, device=self._devices[shards])
            if shards in totals:
                total += totals[shards]
            self._reduce(shards, total)
            found.append(total)
        return found

    def any_rank(self, flag: bool) -> bool:
        """Whether a flag is up on any rank that shares a mesh; every rank must call."""
        for shards in self._slots:
            number = torch.full((), float(flag), device=self._devices[shards])
            self._reduce(shards, number)
            flag = bool(number > 0)
        return flag

    @staticmethod
    def _reduce(shards: Shards, tensor: Tensor) -> None:
        mesh, axes = shards
        for axis in axes:
            dist.all_reduce(tensor, group=mesh.get_group(axis))


def grad_norm(works: Sequence[Work], slots: ShardSlots) -> Tensor:
    """Returns the norm of all gradients together, a scalar in float64.

    Args:
        works: The batches of all groups.
        slots: The sharded parameters.

    Returns:
        The norm; of sharded gradients, that of the whole ones, the same on every rank.
    """
    whole: list[Tensor] = []
    split: dict[Shards, Tensor] = {}
    for work in works:
        square = _grad_square(work)
        shards = work.batch.kind.sharded
        if shards is None or not shards[1]:
            whole.append(square)
        else:
            split[shards] = split[shards] + square if shards in split else square
    whole += slots.sums_by_mesh(split)
    if not whole:
        return torch.zeros((), dtype=torch.float64)
    device = whole[0].device
    return torch.stack([square.to(device) for square in whole]).sum().sqrt()


def grad_scale(norm: Tensor, max_norm: float) -> float | Tensor:
    """Returns the factor that bounds a norm; on the CPU a number.

    Example:
        >>> grad_scale(torch.tensor(4.0), 1.0), grad_scale(torch.tensor(0.0), 1.0)
        (0.25, 1.0)
    """
    scale = (max_norm / norm).clamp(max=1.0)
    return scale if scale.device.type != "cpu" else scale.item()


def _grad_square(work: Work) -> Tensor:
    if work.batch.kind.path == "native":
        squares = torch.from_numpy(_native.grad_squares(work.rows))
        return squares.sum()
    if work.batch.kind.path == "triton":
        return _triton.grad_squares(work).sum()
    # A sum of squares in half precision overflows at a norm of 256, in float32 at 1.8e19.
    norms = torch._foreach_norm(work.grads, 2, dtype=torch.float64)
    return torch.stack(norms).square_().sum()
