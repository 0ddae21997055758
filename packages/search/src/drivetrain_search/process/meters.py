"""Meters: times of steps and passes, floating-point operations, peak speed and memory."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import Measurement
from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.numerics.checksum import gathered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_core import Accelerated

# Where a product takes this long, few of them must do.
_SLOW_S = 1.0


def measure_steps(
    accelerated: Accelerated,
    batches: Iterator[Any],
    *,
    min_steps: int,
    min_seconds: float,
    max_steps: int = 1000,
) -> Measurement:
    """Trains for some steps and returns how long they took.

    Where events tell the time, the steps are queued without a wait in between, as in
    training; the shares of data and optimizer come from the host's clock elsewhere only.

    Args:
        accelerated: The built program, warmed up.
        batches: Where the steps get their batches from.
        min_steps: Steps to run at least.
        min_seconds: Seconds to run at least.
        max_steps: Steps to run at most.
    """
    device = accelerated.device
    # While nothing trained, workers have prepared batches, which hide their real pace.
    for _ in range(_num_prepared(accelerated.loader)):
        next(batches)
    run = _queued_steps if accelerated.context.device.event_timing else _waiting_steps
    reset_peak_memory(device)
    times, data_s, optimizer_s = run(
        accelerated, batches, min_steps, min_seconds, max_steps
    )
    batch = accelerated.context.batch
    total = sum(times)
    return Measurement(
        step_times_s=tuple(times),
        samples_per_step=batch.size,
        tokens_per_step=batch.num_tokens,
        peak_memory_bytes=peak_memory_bytes(device),
        data_share=min(1.0, data_s / total),
        optimizer_share=min(1.0, optimizer_s / total),
    )


def _waiting_steps(
    accelerated: Accelerated,
    batches: Iterator[Any],
    min_steps: int,
    min_seconds: float,
    max_steps: int,
) -> tuple[list[float], float, float]:
    """Times by the host's clock, which waits for the device after each part."""
    step, clock = accelerated.train_step, time.perf_counter
    device = accelerated.device
    wait = partial(accelerator_of(device).synchronize, device.index)
    times: list[float] = []
    wait()
    data_s, optimizer_s = 0.0, 0.0
    while len(times) < max_steps and (
        len(times) < min_steps or sum(times) < min_seconds
    ):
        start = clock()
        batch = next(batches)
        loaded = clock()
        step.accumulate(batch)
        step.second_pass(batch)
        wait()
        computed = clock()
        step.optimizer_step()
        wait()
        end = clock()
        times.append(end - start)
        data_s += loaded - start
        optimizer_s += end - computed
    return times, data_s, optimizer_s


def _queued_steps(
    accelerated: Accelerated,
    batches: Iterator[Any],
    min_steps: int,
    min_seconds: float,
    max_steps: int,
) -> tuple[list[float], float, float]:
    """Times by events; the optimizer's share from two steps with a wait in between."""
    step, clock = accelerated.train_step, time.perf_counter
    optimizer_s, profiled_s = 0.0, 0.0
    for _ in range(2):
        batch = next(batches)
        torch.accelerator.synchronize()
        start = clock()
        step.accumulate(batch)
        step.second_pass(batch)
        torch.accelerator.synchronize()
        computed = clock()
        step.optimizer_step()
        torch.accelerator.synchronize()
        optimizer_s += clock() - computed
        profiled_s += clock() - start
    marks = [torch.Event(device=accelerated.device.type, enable_timing=True)]
    data_s, begin = 0.0, clock()
    marks[0].record()
    while len(marks) <= max_steps and (
        len(marks) <= min_steps or clock() - begin < min_seconds
    ):
        start = clock()
        batch = next(batches)
        data_s += clock() - start
        step(batch)
        mark = torch.Event(device=accelerated.device.type, enable_timing=True)
        mark.record()
        marks.append(mark)
    torch.accelerator.synchronize()
    times = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]
    # Host time spent on data hides behind queued work; only what is left counts.
    hidden = sum(times) - (clock() - begin - data_s)
    share = optimizer_s / profiled_s if profiled_s else 0.0
    return times, max(0.0, min(data_s, hidden)), share * sum(times)


def count_flops(accelerated: Accelerated, batch: Any) -> int | None:
    """Returns the floating-point operations of one forward and backward on this rank.

    Gradients are cleared after it. Returns None when the counter fails: torch cannot
    trace into every custom operator.
    """
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            accelerated.train_step.accumulate(batch)
    except Exception:  # noqa: BLE001
        # A meter must not end the measurement that it decorates.
        return None
    finally:
        accelerated.optimizer.zero_grad(set_to_none=True)
    return int(counter.get_total_flops()) or None


def peak_flops_per_s(
    device: torch.device, dtype: torch.dtype, size: int | None = None
) -> float:
    """Returns the best rate of a square matrix product, the limit that MFU refers to.

    Args:
        device: Where to measure.
        dtype: The number format of the operands.
        size: Rows of the matrices; by default 1,024 on a CPU and 8,192 elsewhere, or
            fewer that half of its free memory holds.

    Example:
        >>> peak_flops_per_s(torch.device("cpu"), torch.float32, size=64) > 0
        True
    """
    n = size or (1024 if device.type == "cpu" else 8192)
    free, _ = accelerator_of(device).memory(device.index or 0) or (math.inf, 0)
    # Three matrices, made as float32.
    while size is None and n > 256 and 2 * 3 * 4 * n * n > free:
        n //= 2
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))

    def once() -> float:
        start = time.perf_counter()
        a @ b
        if device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter() - start

    for _ in range(3):
        if once() > _SLOW_S:
            break
    times_s: list[float] = []
    while len(times_s) < 10 and sum(times_s) < _SLOW_S:
        times_s.append(once())
    return 2.0 * n**3 / statistics.median(times_s)


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new peak: of device memory, or of this process on a CPU."""
    accelerator_of(device).reset_peak_memory(device.index or 0)


def peak_memory_bytes(device: torch.device) -> int:
    """Returns the peak since the last reset; on a CPU that of resident memory.

    It is 0 for a device that counts none.
    """
    return accelerator_of(device).peak_memory(device.index or 0) or 0


def _num_prepared(loader: Any) -> int:
    """Returns how many batches the workers of a loader may hold ready."""
    workers = getattr(loader, "num_workers", 0)
    each = getattr(loader, "prefetch_factor", 0)
    return workers * each if isinstance(workers, int) and isinstance(each, int) else 0


@contextmanager
def timed_passes(
    accelerated: Accelerated, told: Callable[[float], None]
) -> Iterator[list[float]]:
    """Times the passes over batches inside; yields the seconds of each so far.

    Args:
        accelerated: The built program.
        told: Called with the seconds of each pass.
    """
    step: Any = accelerated.train_step
    accumulate, wait = step.accumulate, accelerator_of(accelerated.device).synchronize
    times: list[float] = []

    def timed(batch: Any) -> torch.Tensor:
        start = time.perf_counter()
        loss: torch.Tensor = accumulate(batch)
        wait()
        times.append(time.perf_counter() - start)
        told(times[-1])
        return loss

    step.accumulate = timed
    try:
        yield times
    finally:
        step.accumulate = accumulate


def passes_seconds(times: Sequence[float]) -> float:
    """Returns what passes took in all, without what was compiled in some of them.

    Args:
        times: Seconds of each pass; more than the median is not the pass itself.

    Example:
        >>> passes_seconds([9.0, 0.5, 0.25, 0.5])
        1.75
    """
    if not times:
        return 0.0
    usual = statistics.median(times)
    return sum(min(seconds, usual) for seconds in times)


class StepClock:
    """Times the first steps, the same on every rank.

    Args:
        device: Where the steps run.
        watch: Told the seconds of the steps so far after each.
    """

    def __init__(
        self, device: torch.device, watch: Callable[[list[float]], None] | None
    ) -> None:
        """Has timed none so far."""
        self._wait = accelerator_of(device).synchronize
        self._watch = watch
        self._seconds: list[float] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Times the step inside."""
        started_s = self._now_s()
        yield
        self._seconds.append(max(gathered(self._now_s() - started_s)))
        if self._watch is not None:
            self._watch(self._seconds)

    def steps_until(self, until_s: float) -> float:
        """Returns how many more such steps fit; the first one also warmed up.

        Args:
            until_s: When they shall be done, in `time.monotonic` seconds.
        """
        left_s = float(min(gathered(until_s - self._now_s())))
        return max(left_s, 0.0) / max(statistics.median(self._seconds[1:]), 1e-9)

    def _now_s(self) -> float:
        self._wait()
        return time.monotonic()
