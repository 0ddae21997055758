"""Gradients on their way: DDP's small buckets, merged into messages of a chosen size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_comm._pilot import StepRecord
from drivetrain_comm._predict import Bucket

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

    from drivetrain_comm._native import Ticket
    from drivetrain_comm._pilot import Pilot
    from drivetrain_comm._process_group import TunedProcessGroup

__all__ = ["Fusion", "merge_buckets"]


def merge_buckets(fusion, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """The hook that DDP calls; it has no annotations since torch compares them."""
    return fusion.take(bucket)


class Fusion:
    """Takes the buckets of one DDP module.

    DDP hands them over in the same order on all ranks. They are collected until they
    hold enough bytes, and then reduced at once without being copied together.

    Args:
        group: The ranks.
        pilot: Says how much is collected, and how it is reduced, step by step.
    """

    def __init__(self, group: TunedProcessGroup, pilot: Pilot) -> None:
        """Collects nothing yet."""
        self.pilot = pilot
        self._group = group
        self._waiting: list[tuple[torch.futures.Future[Any], torch.Tensor]] = []
        self._waiting_bytes = 0
        self._began_s = 0.0
        self._buckets: list[Bucket] = []
        self._last: Ticket | None = None

    def take(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Takes a bucket; the future holds its average over all ranks."""
        if bucket.index() == 0:
            self._begin_step()
        buffer = bucket.buffer()
        ready_s = time.monotonic() - self._began_s
        self._buckets.append(Bucket(ready_s=ready_s, size_bytes=buffer.nbytes))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._waiting.append((future, buffer))
        self._waiting_bytes += buffer.nbytes
        if self._waiting_bytes >= self.pilot.tactic.bucket_bytes or bucket.is_last():
            self._flush()
        return future

    def _begin_step(self) -> None:
        self._waiting, self._waiting_bytes = [], 0
        if self._last is not None and self._last.wait(0.0) == "":
            span_s = self._last.ended_at_s() - self._began_s
            self.pilot.advance(StepRecord(buckets=tuple(self._buckets), span_s=span_s))
        self._buckets = []
        self._began_s = time.monotonic()

    def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        tensors = [tensor for _, tensor in waiting]
        choice = self.pilot.tactic.choice
        self._last = self._group.reduce_pieces(tensors, "AVG", choice)
        self._group.notifier.keep(self._last, tensors)
        self._group.notifier.tell(self._last, waiting)
