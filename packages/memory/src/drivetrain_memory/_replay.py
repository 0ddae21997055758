"""Traces played to allocators: this one, and models of PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._limits import (
    CHUNK_BYTES,
    MOST_BYTES,
    require_capacity,
    require_headroom,
)
from drivetrain_memory._native import extension

if TYPE_CHECKING:
    from drivetrain_memory import _extension
    from drivetrain_memory.trace._format import Trace

_MIB = 2**20

MODELS = {
    "ours": (0, CHUNK_BYTES),
    "native": (1, CHUNK_BYTES),
    "expandable": (2, 20 * _MIB),
    "expandable-2": (2, CHUNK_BYTES),
    "gmlake": (3, 512 * _MIB),
    "gmlake-64": (3, 64 * _MIB),
}
"""Allocators by name: this project's; PyTorch's with its defaults, with expandable
segments, and with segments that are mapped 2 MiB at a time; and GMLake's as published, which
stitches blocks for requests of 512 MiB, or of 64 MiB. The value is for the library.
"""

_IN_SEGMENTS = ("native", "expandable", "expandable-2")

# No allocator here needs more of any trace; small programs need whole segments.
_MOST_OF_LIVE = 4
_MOST_BESIDE_LIVE = 64 * _MIB


_COUNTS = (
    "peak_live_bytes",
    "peak_reserved_bytes",
    "remapped_bytes",
    "driver_calls",
    "flushes",
    "stream_waits",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """How an allocator fared with a trace.

    Args:
        finished: Whether every request was served.
        peak_live_bytes: The most that was live.
        peak_reserved_bytes: The most that was taken of the device.
        remapped_bytes: Physical memory that moved, or was given back and taken again.
        driver_calls: Calls to the driver.
        flushes: Times that all that was cached went back, which stalls the device.
        stream_waits: Times that a stream waited for another.
        calls_by_step: The driver calls of each step, beginning with what came before.
    """

    finished: bool
    peak_live_bytes: int
    peak_reserved_bytes: int
    remapped_bytes: int
    driver_calls: int
    flushes: int
    stream_waits: int
    calls_by_step: tuple[int, ...]


def replay(
    trace: Trace, model: str, *, capacity_bytes: int, headroom: float | None = None
) -> Replayed:
    """Plays a trace to an allocator, without a device.

    Args:
        trace: What was asked for.
        model: One of `MODELS`.
        capacity_bytes: Of the device.
        headroom: By what part more than the live peak `ours` reserves before it joins
            free memory instead; None for as much as there is.

    Raises:
        MemoryUseError: There is no such model, the trace contradicts itself, the capacity
            is not between 1 byte and 1 PiB, or the headroom is not at least 0.

    Example:
        >>> from drivetrain_memory.trace import pattern
        >>> trace = pattern("checkerboard-6")
        >>> live = trace.peak_live_bytes
        >>> replay(trace, "ours", capacity_bytes=live).finished
        True
        >>> replay(trace, "expandable", capacity_bytes=live * 5 // 4).finished
        False
    """
    found = _play(trace, model, capacity_bytes, headroom)
    steps = trace.num_steps + 1
    calls = [*found.calls_by_step, *[0] * steps][:steps]
    return Replayed(
        finished=found.served == len(trace.events),
        calls_by_step=tuple(calls),
        **{name: getattr(found, name) for name in _COUNTS},
    )


def segment_events(
    trace: Trace, model: str, *, capacity_bytes: int
) -> list[tuple[int, int]]:
    """Returns the memory that an allocator takes of the device, in its order.

    Args:
        trace: What was asked for.
        model: "native", "expandable" or "expandable-2", which take memory in segments.
        capacity_bytes: Of the device.

    Returns:
        Bytes and stream of each segment; negative where it is given back.

    Raises:
        MemoryUseError: As `replay`; or the model takes no segments.

    Example:
        >>> from drivetrain_memory.trace import Builder
        >>> builder = Builder("one")
        >>> builder.free(builder.allocate(3 << 20))
        >>> segment_events(builder.trace(), "native", capacity_bytes=1 << 30)
        [(20971520, 0)]
    """
    if model in MODELS and model not in _IN_SEGMENTS:
        message = (
            f"{model} takes no segments as PyTorch does; the models that do are "
            f"{', '.join(_IN_SEGMENTS)}"
        )
        raise MemoryUseError(message)
    return _play(trace, model, capacity_bytes, None).segment_events


def _play(
    trace: Trace, model: str, capacity_bytes: int, headroom: float | None
) -> _extension.Replayed:
    if model not in MODELS:
        message = f"there is no model {model!r}; there are {', '.join(MODELS)}"
        raise MemoryUseError(message)
    require_capacity(capacity_bytes)
    require_headroom(headroom)
    number, chunk = MODELS[model]
    given = -1.0 if headroom is None else headroom
    found: _extension.Replayed = extension().replay(
        trace.events, number, capacity_bytes, chunk, given
    )
    return found


def ample_bytes(trace: Trace) -> int:
    """Returns the bytes of a device that is large for a trace.

    They are four times the live peak, or 64 MiB more than it if that is more.

    Raises:
        MemoryUseError: The trace asks for no memory.
    """
    live = trace.peak_live_bytes
    if live == 0:
        message = f"{trace.name} asks for no memory; give a trace that does"
        raise MemoryUseError(message)
    return min(max(_MOST_OF_LIVE * live, live + _MOST_BESIDE_LIVE), MOST_BYTES)


def smallest_capacity(trace: Trace, model: str) -> int:
    """Returns the bytes of the smallest device on which a trace finishes.

    That is to one chunk of 2 MiB, if a larger device is never worse.

    Args:
        trace: What was asked for.
        model: One of `MODELS`.

    Raises:
        MemoryUseError: As `replay`; or the trace asks for no memory, or does not finish
            on four times its live peak, or on 64 MiB more than it if that is more.

    Example:
        >>> from drivetrain_memory.trace import pattern
        >>> trace = pattern("island")
        >>> smallest_capacity(trace, "ours") / trace.peak_live_bytes < 1.005
        True
    """
    high = -(-ample_bytes(trace) // CHUNK_BYTES)
    low = max(trace.peak_live_bytes // CHUNK_BYTES, 1)
    if not replay(trace, model, capacity_bytes=high * CHUNK_BYTES).finished:
        message = f"{trace.name} does not finish on {high * CHUNK_BYTES} bytes"
        raise MemoryUseError(message)
    while low < high:
        middle = (low + high) // 2
        if replay(trace, model, capacity_bytes=middle * CHUNK_BYTES).finished:
            high = middle
        else:
            low = middle + 1
    return low * CHUNK_BYTES


def largest_batch(trace: Trace, model: str, *, capacity_bytes: int) -> int:
    """Returns the largest batch with which a trace finishes on a device; 0 for none.

    That is if a smaller batch never needs more.

    Args:
        trace: What was asked for; of a known batch (`scalable`), as those that ship.
        model: One of `MODELS`.
        capacity_bytes: Of the device.

    Raises:
        MemoryUseError: As `replay`; or the trace's batch is not known, or no block
            grows with it.

    Example:
        >>> from drivetrain_memory.trace import workload
        >>> largest_batch(workload("resnet-50"), "ours", capacity_bytes=16 << 30)
        210
    """
    require_capacity(capacity_bytes)
    if not trace.scales_with_batch:
        message = f"it is not known how {trace.name} depends on its batch"
        raise MemoryUseError(message)

    def fits(batch: int) -> bool:
        scaled = trace.at_batch(batch)
        if scaled.peak_live_bytes > capacity_bytes:
            return False
        return replay(scaled, model, capacity_bytes=capacity_bytes).finished

    low, high, most = 0, 1, trace.most_batch
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
