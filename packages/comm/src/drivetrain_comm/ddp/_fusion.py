"""Bucket fusion: DDP's small buckets, merged into messages of a chosen size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torch._compile import _disable_dynamo

from drivetrain_comm.ddp._ddp_tuner import StepRecord
from drivetrain_comm.ddp._predict import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch._C._distributed_c10d import GradBucket

    from drivetrain_comm.ddp._compress import Compressor, Outcome, Part
    from drivetrain_comm.ddp._ddp_tuner import DdpTuner


@_disable_dynamo
def merge_buckets(fusion, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """The hook that DDP calls; it has no annotations since torch compares them."""
    return fusion.take(bucket)


def _nothing() -> None:
    """What becomes of a `Fusion` in a copy or a file."""


class Fusion:
    """Takes the buckets of one DDP module.

    DDP hands them over in the same order on all ranks. They are collected until they
    hold enough bytes of one dtype, and then reduced at once.

    Args:
        tuner: Says how much is collected, and how it is reduced, step by step.
        compressor: Averages what was collected.
    """

    def __init__(self, tuner: DdpTuner, compressor: Compressor) -> None:
        """Collects nothing yet."""
        self.tuner = tuner
        self.compressor = compressor
        self._waiting: list[Part] = []
        self._began_s = 0.0
        self._buckets: list[Bucket] = []
        self._last: Outcome | None = None

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Copies of a module start without one: they have their own buckets."""
        return _nothing, ()

    def take(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Takes a bucket; the future holds its average over all ranks."""
        if bucket.index() == 0:
            self._begin_step()
        part = self.compressor.accept(bucket)
        ready_s = time.monotonic() - self._began_s
        self._buckets.append(Bucket(ready_s=ready_s, size_bytes=part.size_bytes))
        if self._waiting and self._waiting[0].buffer.dtype != part.buffer.dtype:
            self._flush()
        self._waiting.append(part)
        size_bytes = sum(one.size_bytes for one in self._waiting)
        if size_bytes >= self.tuner.plan.bucket_bytes or bucket.is_last():
            self._flush()
        return part.future

    def _begin_step(self) -> None:
        self._waiting = []
        if self._last is not None and self._last.wait(0.0) == "":
            span_s = self._last.ended_at_s() - self._began_s
            self.tuner.advance(StepRecord(buckets=tuple(self._buckets), span_s=span_s))
        self._buckets = []
        self._began_s = time.monotonic()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._last = self.compressor.reduce(waiting, self.tuner.plan.choice)
