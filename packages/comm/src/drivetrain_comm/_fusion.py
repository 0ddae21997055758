"""Gradients on their way: DDP's small buckets, merged into messages of a chosen size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_comm._choice import STOCK

if TYPE_CHECKING:
    import torch.distributed as dist

    from drivetrain_comm._choice import Choice
    from drivetrain_comm._process_group import TunedProcessGroup

__all__ = ["Fusion", "merge_buckets"]


def merge_buckets(fusion, bucket):  # type: ignore[no-untyped-def]
    """The hook that DDP calls; it has no annotations since torch compares them."""
    return fusion.take(bucket)


class Fusion:
    """The communication hook of one DDP module.

    DDP hands over its buckets in the same order on all ranks. They are collected until
    they hold enough bytes, and then reduced at once without being copied together.

    Args:
        group: The ranks.
        bucket_bytes: How much is collected; may be changed between two steps.
        choice: How it is reduced; may be changed between two steps.
    """

    def __init__(
        self, group: TunedProcessGroup, bucket_bytes: int, choice: Choice
    ) -> None:
        """Collects nothing yet."""
        self._group = group
        self.bucket_bytes = bucket_bytes
        self.choice = choice
        self._waiting: list[tuple[torch.futures.Future[Any], torch.Tensor]] = []
        self._waiting_bytes = 0

    def take(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Takes a bucket; the future holds its average over all ranks."""
        buffer = bucket.buffer()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._waiting.append((future, buffer))
        self._waiting_bytes += buffer.nbytes
        if self._waiting_bytes >= self.bucket_bytes or bucket.is_last():
            self._flush()
        return future

    def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        tensors = [tensor for _, tensor in waiting]
        ticket = self._group.reduce_pieces(tensors, "AVG", self.choice)
        self._group.notifier.keep(ticket, tensors)
        self._group.notifier.tell(ticket, waiting)
