"""What an allocator holds and did, as PyTorch's memory viewer reads it."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._limits import (
    CHUNK_BYTES,
    MOST_NUMBER,
    require_capacity,
    require_headroom,
    require_integer,
)
from drivetrain_memory._native import (
    NativeAllocator,
    extension,
    null_driver,
    of_device,
)
from drivetrain_memory.trace._format import Operation

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from drivetrain_memory._extension import BlockInfo, HistoryEntry
    from drivetrain_memory._native import Inspector
    from drivetrain_memory.trace._format import Trace

_MOST_DEVICES = 64
_STATES = {0: "inactive", 1: "active_allocated", 2: "active_awaiting_free"}
_ACTIONS = (
    *("alloc", "free_requested", "free_completed", "oom"),
    # What fell asleep, and what woke.
    *("segment_unmap", "segment_map"),
)

# What PyTorch's viewer reads; Python 3.14 would choose a newer one.
_PICKLE_PROTOCOL = 4


def snapshot() -> dict[str, Any]:
    """Returns what every device's allocator holds, and what it did last.

    The format is that of `torch.cuda.memory._snapshot`: a file that `save_snapshot`
    writes opens in PyTorch's memory viewer. What was done is known from the moment on
    that `keep_history` was called.
    """
    found = dict(_of_devices())
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max(found, default=-1) + 1)]
    segments = []
    for device, inspector in found.items():
        part = snapshot_of(inspector, device)
        segments += part["segments"]
        traces[device] = part["device_traces"][0]
    return _whole(segments, traces)


def snapshot_of(inspector: Inspector, device: int = 0) -> dict[str, Any]:
    """Returns the snapshot of one allocator."""
    blocks = inspector.blocks()
    runs = itertools.groupby(_with_runs(blocks), key=lambda pair: pair[0])
    segments = [_segment([block for _, block in run], device) for _, run in runs]
    return _whole(segments, [[_entry(entry) for entry in inspector.history()]])


def snapshot_at_peak(
    trace: Trace, *, capacity_bytes: int, headroom: float | None = None
) -> dict[str, Any]:
    """Plays a trace to this allocator in book-keeping, until most is live.

    Args:
        trace: What was asked for.
        capacity_bytes: Of the device.
        headroom: As in `replay`.

    Returns:
        The snapshot of that moment.

    Raises:
        MemoryUseError: The trace contradicts itself, the capacity is not between 1 byte
            and 1 PiB, or the headroom is not at least 0.
        DeviceMemoryError: It does not fit.

    Example:
        >>> from drivetrain_memory.trace import pattern
        >>> trace = pattern("island")
        >>> found = snapshot_at_peak(trace, capacity_bytes=5 << 30)
        >>> sum(one["allocated_size"] for one in found["segments"]) >> 30
        4
    """
    require_capacity(capacity_bytes)
    require_headroom(headroom)
    allocator = NativeAllocator(
        null_driver(capacity_bytes, CHUNK_BYTES),
        headroom=-1.0 if headroom is None else headroom,
    )
    events = trace.events[trace.events["operation"] != Operation.STEP]
    moves = np.flatnonzero(events["operation"] <= Operation.FREE)
    until = int(moves[np.argmax(trace.live_bytes())]) + 1 if len(moves) else 0
    addresses: dict[int, int] = {}
    for event in events[:until]:
        operation, name = int(event["operation"]), int(event["id"])
        stream = int(event["stream"])
        if operation == Operation.ALLOCATE:
            addresses[name] = allocator.allocate(int(event["size"]), stream)
        elif name not in addresses:
            message = f"the trace names block {name}, which is not live"
            raise MemoryUseError(message)
        elif operation == Operation.FREE:
            allocator.free(addresses.pop(name))
        else:
            allocator.record_stream(addresses[name], stream)
    return snapshot_of(allocator)


def save_snapshot(path: str | os.PathLike[str]) -> None:
    """Writes a file for PyTorch's memory viewer."""
    Path(path).write_bytes(pickle.dumps(snapshot(), _PICKLE_PROTOCOL))


def keep_history(entries: int) -> None:
    """Keeps the last entries of what each allocator does, from now on.

    Args:
        entries: How many; 0 for none, as at first. Each takes 40 bytes.

    Raises:
        MemoryUseError: It is no whole number, or less than 0.
    """
    require_integer("a number of entries", entries, 0, MOST_NUMBER)
    extension().keep_history(entries)


def _of_devices() -> Iterator[tuple[int, Inspector]]:
    for device in range(_MOST_DEVICES):
        found = of_device(device)
        if found is not None:
            yield device, found


def _with_runs(blocks: list[BlockInfo]) -> Iterator[tuple[int, BlockInfo]]:
    """Yields each block with the number of its run of neighbours."""
    run, end = 0, 0
    for block in blocks:
        run += block.at != end
        end = block.at + block.size
        yield run, block


def _segment(blocks: list[BlockInfo], device: int) -> dict[str, Any]:
    first = blocks[0]
    live = sum(block.size for block in blocks if block.kind == 1)
    pending = sum(block.size for block in blocks if block.kind == 2)
    return {
        "device": device,
        "address": first.at,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": live,
        "active_size": live + pending,
        "requested_size": live,
        "stream": first.stream,
        "segment_type": "large",
        "segment_pool_id": _pool_id(first.graph),
        "is_expandable": True,
        "frames": [],
        "blocks": [
            {
                "address": block.at,
                "size": block.size,
                "requested_size": block.size,
                "state": _STATES.get(block.kind, "inactive"),
                "frames": [],
            }
            for block in blocks
        ],
    }


def _pool_id(graph: int) -> tuple[int, int]:
    """Returns PyTorch's name of a pool, from its number in `graph_pools.hpp`."""
    number, of_capture = divmod(graph, 2)
    return (number, 0) if of_capture else (0, number)


def _entry(entry: HistoryEntry) -> dict[str, Any]:
    action = _ACTIONS[entry.action]
    place = "device_free" if action == "oom" else "addr"
    return {
        "action": action,
        place: entry.at,
        "size": entry.size,
        "stream": entry.stream,
        "time_us": entry.time_us,
        "pool_id": _pool_id(entry.graph),
        "frames": [],
    }


def _whole(
    segments: list[dict[str, Any]], traces: list[list[dict[str, Any]]]
) -> dict[str, Any]:
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {"allocator": "drivetrain-memory"},
        "external_annotations": [],
    }
