"""Gradients on a device: torch's backend reduces them, in buckets of measured sizes."""

from __future__ import annotations

import logging
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

from drivetrain_comm.ddp._compress import Part
from drivetrain_comm.ddp._ddp_tuner import DdpTuner, StepRecord
from drivetrain_comm.ddp._fusion import Fusion, require_exact
from drivetrain_comm.ddp._predict import Bucket
from drivetrain_comm.ddp._reduction_plan import (
    FIRST_BYTES,
    candidates_on_device,
    stock_plan,
)
from drivetrain_comm.selection._cost import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch._C._distributed_c10d import GradBucket

    from drivetrain_comm.backend._process_group import TunedProcessGroup
    from drivetrain_comm.ddp._fusion import AnyFuture
    from drivetrain_comm.ddp._reduction_plan import ReductionPlan

logger = logging.getLogger(__name__)

# All-reduces of these sizes are timed, until one takes long.
_SIZES = tuple((64 << 10) * 4**power for power in range(5))
_LONG_S, _NUM_TIMED = 0.05, 3
# Once it is decided, a step in so many is timed: who reads a time waits for the device.
_EVERY = 10


class DeviceFusion(Fusion):
    """Takes the buckets of a DDP module whose parameters are on one device.

    The hook returns before anything is reduced, as torch's backends do: what is to be
    known of a step is told by events on the device's streams, when the next one begins.
    """

    _is_timed = True
    _num_steps = 0

    def _start(self, bucket: GradBucket) -> None:
        self._device = bucket.buffer().device
        try:
            torch.Event(self._device, enable_timing=True)
            obstacle = "the first step is captured by a graph" * self._is_captured()
        except RuntimeError as error:
            obstacle = str(error)
        if obstacle:
            require_exact(self.group, obstacle)
            self._is_left = True
            return
        self.tuner = DeviceTuner(self.group, self._device)
        self.compressor = self._make_compressor(self.group)

    def _begin_step(self) -> None:
        assert self.tuner is not None
        super()._begin_step()
        self._num_steps += 1
        is_due = self.tuner.phase != "committed" or self._num_steps % _EVERY == 0
        self._is_timed = self.compressor.is_timed = is_due and not self._is_captured()
        self._began = self._mark()

    def _is_captured(self) -> bool:
        # What is captured runs later, if at all, and nothing may wait for it.
        module = torch.get_device_module(self._device)
        return bool(getattr(module, "is_current_stream_capturing", bool)())

    def _mark(self) -> Any:
        is_told = self._is_timed and not self._is_captured()
        return _mark(self._device) if is_told else None

    def _record(self) -> StepRecord | None:
        if self._last is None or not self._is_timed or self._is_captured():
            return None
        self._last.synchronize()

        def since_s(event: torch.Event) -> float:
            return float(self._began.elapsed_time(event)) / 1e3

        buckets = [
            Bucket(ready_s=since_s(event), size_bytes=size_bytes)
            for event, size_bytes in self._buckets
        ]
        return StepRecord(buckets=tuple(buckets), span_s=since_s(self._last))


class OnDevice:
    """Averages gradients on a device as torch's DDP does, several buckets at once.

    Args:
        group: The ranks.

    Attributes:
        is_timed: Whether the ends are marked.
    """

    def __init__(self, group: TunedProcessGroup) -> None:
        """Keeps the group."""
        self._group = group
        self._is_coalesced = self.is_timed = True

    def accept(self, bucket: GradBucket) -> Part:
        """Returns the bucket as it is, with the stream on which it becomes ready."""
        buffer = bucket.buffer()
        done: AnyFuture = torch.futures.Future(devices=[buffer.device])
        stream = torch.accelerator.current_stream(buffer.device)
        return Part(done, buffer, buffer.nbytes, stream=stream)

    def reduce(self, parts: Sequence[Part], _: object) -> torch.Event | None:
        """Averages in place; returns the event of the end, recorded by the device."""
        buffers = [part.buffer for part in parts]
        here = torch.accelerator.current_stream(buffers[0].device)
        for part in parts:
            if part.stream != here:
                here.wait_stream(part.stream)
            # Scaled first, and by a product, as torch's DDP does: the sums are the same.
            # Of all at once, the factor has no more bits than they.
            part.buffer.mul_(1 / self._group.size())
        works = self._begin(buffers)
        end = torch.Event(here.device, enable_timing=True) if self.is_timed else None

        def complete(_: object) -> None:
            try:
                for work in works:
                    work.wait()
                if end is not None:
                    end.record()
            except Exception as error:  # noqa: BLE001
                # DDP, which waits for the futures, raises it.
                for part in parts:
                    part.future.set_exception(error)
                return
            for part in parts:
                part.future.set_result(part.buffer)

        works[-1].get_future().then(complete)
        return end

    def _begin(self, buffers: list[torch.Tensor]) -> list[dist.Work]:
        # NCCL takes complex numbers one by one only.
        if self._is_coalesced and len(buffers) > 1 and not buffers[0].is_complex():
            try:
                return [self._group.inner.allreduce_coalesced(buffers)]
            except RuntimeError as error:
                if type(error) not in {RuntimeError, NotImplementedError}:
                    raise
                logger.warning("gradients are reduced one by one: %s", error)
                self._is_coalesced = False
        return [self._group.inner.allreduce([buffer]) for buffer in buffers]


class DeviceTuner(DdpTuner):
    """Says in which buckets the gradients on a device are reduced.

    Args:
        group: The ranks.
        device: Of the gradients.
    """

    # With two cold steps and two that are profiled, 24 at most.
    _rounds: ClassVar[dict[str, Any]] = {"rounds": ((2, 3), (2, 2), (3, 1))}

    def __init__(self, group: TunedProcessGroup, device: torch.device) -> None:
        """Times all-reduces of a few sizes."""
        self._device = device
        super().__init__(group)
        self._may_recall = False

    def _measure(self) -> None:
        if not self._group.settings.tune:
            return
        times: dict[int, float] = {}
        reduce = self._group.inner.allreduce
        for size in _SIZES:
            scratch = torch.zeros(size // 4, dtype=torch.float32, device=self._device)
            reduce([scratch]).wait()
            begin = _mark(self._device)
            for _ in range(_NUM_TIMED):
                reduce([scratch]).wait()
            end = _mark(self._device)
            end.synchronize()
            (times[size],) = self._agree([begin.elapsed_time(end) / 1e3 / _NUM_TIMED])
            if times[size] > _LONG_S:
                break
        self._cost = cost_from(times)

    def _agree(self, values: Sequence[float]) -> list[float]:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        told = torch.tensor(values, dtype=torch.float32, device=self._device)
        self._group.inner.allreduce([told], options).wait()
        return told.tolist()

    def _cold(self) -> ReductionPlan:
        return stock_plan(self._group.settings, FIRST_BYTES)

    def _predict(self, buckets: list[Bucket]) -> list[tuple[ReductionPlan, float]]:
        return candidates_on_device(buckets, self._cost, self._group.settings)

    def _keep(self, *_: object) -> None: ...


def cost_from(times: Mapping[int, float]) -> Callable[[int], Cost]:
    """Returns what an all-reduce of a size takes: between measured ones on a line.

    Args:
        times: Seconds by bytes, of one size or more.

    Example:
        >>> cost = cost_from({1000: 0.1, 3000: 0.2})
        >>> [round(cost(size).busy_s, 3) for size in (2000, 5000)]
        [0.15, 0.3]
    """
    sizes = sorted({0, *times})
    # A short message takes as long as the shortest that was timed.
    known = {0: times[min(times)], **times}

    def cost(size_bytes: int) -> Cost:
        at = min(max(bisect_left(sizes, size_bytes), 1), len(sizes) - 1)
        low, high = sizes[at - 1], sizes[at]
        share = (size_bytes - low) / (high - low)
        # Ranks take their turns on one stream.
        seconds = known[low] + share * (known[high] - known[low])
        return Cost(busy_s=seconds, alone_s=seconds)

    return cost


def _mark(device: torch.device) -> torch.Event:
    event = torch.Event(device, enable_timing=True)
    event.record()
    return event
