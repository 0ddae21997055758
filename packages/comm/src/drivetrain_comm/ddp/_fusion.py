"""Bucket fusion: DDP's small buckets, merged into messages of a chosen size."""

from __future__ import annotations

import logging
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._compile import _disable_dynamo
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from drivetrain_comm.backend._work import show
from drivetrain_comm.ddp._ddp_tuner import DdpTuner, StepRecord
from drivetrain_comm.ddp._predict import Bucket
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import GradBucket

    from drivetrain_comm.backend._process_group import TunedProcessGroup
    from drivetrain_comm.ddp._compress import Part

logger = logging.getLogger(__name__)

AnyFuture: TypeAlias = "torch.futures.Future[torch.Tensor]"


@_disable_dynamo
def merge_buckets(fusion, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """The hook that DDP calls; it has no annotations since torch compares them."""
    return fusion.take(bucket)


class Fusion:
    """Takes the buckets of one DDP module.

    DDP hands them over in the same order on all ranks. They are collected until they
    hold enough bytes of one dtype, and then reduced at once.

    Args:
        ddp: The module.
        group: Its ranks.
        make_compressor: Of what averages that which was collected.

    Attributes:
        group: Its ranks.
        hook: A hook of the user's and its state, which take the buckets instead.
        work: What DDP has begun in its forward pass, kept while it may wait for it.
    """

    def __init__(
        self,
        ddp: Any,
        group: TunedProcessGroup,
        make_compressor: Callable[[TunedProcessGroup], Any],
    ) -> None:
        """Measures and collects nothing yet."""
        # DDP's native half has this one, out of the garbage collector's sight.
        self._ddp = weakref.ref(ddp)
        self.group = group
        self._make_compressor = make_compressor
        self.hook: tuple[Any, Callable[[Any, GradBucket], AnyFuture]] | None = None
        self.work: Any = None
        self.tuner: DdpTuner | None = None
        self._is_left = False
        self.compressor: Any
        self._waiting: list[Part] = []
        self._began: Any = None
        self._buckets: list[tuple[Any, int]] = []
        self._num_sent = 0
        self._last: Any = None

    def take(self, bucket: GradBucket) -> AnyFuture:
        """Takes a bucket; the future holds its average over all ranks."""
        if self.hook is not None:
            return self.hook[1](self.hook[0], bucket)
        ddp = self._ddp()
        if ddp is not None and not getattr(ddp, "_divide_by_initial_world_size", True):
            return self._average_of_active(bucket)
        if self.tuner is None and not self._is_left:
            self._start(bucket)
        if self._is_left:
            return allreduce_hook(self.group, bucket)
        if bucket.index() == 0:
            self._begin_step()
        if bucket.buffer().layout != torch.strided:
            self._flush()
            return allreduce_hook(self.group, bucket)
        part = self.compressor.accept(bucket)
        self._buckets.append((self._mark(), part.size_bytes))
        if self._waiting and self._waiting[0].buffer.dtype != part.buffer.dtype:
            self._flush()
        self._waiting.append(part)
        size_bytes = sum(one.size_bytes for one in self._waiting)
        assert self.tuner is not None
        if size_bytes >= self.tuner.plan.limit(self._num_sent) or bucket.is_last():
            self._flush()
        done: AnyFuture = part.future.then(torch.futures.Future.value)
        return done

    def give_way(
        self, state: Any, hook: Callable[[Any, GradBucket], AnyFuture]
    ) -> None:
        """Leaves the buckets to the user's hook; `require_exact` says what is raised."""
        require_exact(self.group, "the module has a communication hook of its own")
        self.hook = state, hook

    def _start(self, _: GradBucket) -> None:
        """Measures, with all other ranks, unless torch is to do it all."""
        lacks = self.group.transport.lacks
        if lacks:
            require_exact(self.group, f"there is no engine ({lacks})")
            self._is_left = True
        else:
            self.tuner = DdpTuner(self.group)
            self.compressor = self._make_compressor(self.group)

    def _average_of_active(self, bucket: GradBucket) -> AnyFuture:
        """Returns the average over the ranks that still have data, as DDP's join asks.

        Others take part outside of a backward pass.
        """
        if bucket.index() == 0:
            require_exact(self.group, "ranks join, and the average is of those left")
        # Not in the dtype of the bucket, in which 257 may be no number.
        active = float(torch._C._current_graph_task_id() >= 0)
        count = torch.tensor([active], device=bucket.buffer().device)
        self.group.allreduce([count]).wait()
        # Before the sum, which sixteen bits may not hold, as torch's DDP does.
        work = self.group.allreduce([bucket.buffer().mul_(1 / count)])
        return work.get_future().then(lambda future: future.value()[0])

    def _begin_step(self) -> None:
        assert self.tuner is not None
        self._waiting = []
        record = self._record()
        if record is not None:
            self.tuner.advance(record)
        self._buckets, self._num_sent, self._last = [], 0, None
        self._began = self._mark()

    def _mark(self) -> Any:
        """Returns this moment."""
        return time.monotonic()

    def _record(self) -> StepRecord | None:
        """Returns what the last step was like, if that is known."""
        if self._last is None or self._last.wait(0.0) != "":
            return None
        buckets = [
            Bucket(ready_s=at_s - self._began, size_bytes=size_bytes)
            for at_s, size_bytes in self._buckets
        ]
        span_s = self._last.ended_at_s() - self._began
        return StepRecord(buckets=tuple(buckets), span_s=span_s)

    def _flush(self) -> None:
        assert self.tuner is not None
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            show(self.group.name(), waiting[-1].future)
            self._last = self.compressor.reduce(waiting, self.tuner.plan.choice)
            self._num_sent += 1


def require_exact(group: TunedProcessGroup, obstacle: str) -> None:
    """Leaves gradients to torch.

    Raises:
        DistributedError: They are to be compressed, which torch does not.
    """
    compression = group.settings.compression
    if compression != "none":
        message = f"gradients cannot be compressed by {compression}: {obstacle}"
        raise DistributedError(message)
    logger.info("gradients are left to torch: %s", obstacle)
