"""What an allocator holds and did, as PyTorch's memory viewer reads it."""

from __future__ import annotations

import ctypes
import itertools
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_memory._native import call, of_device

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from drivetrain_memory._native import BlockInfo, HistoryEntry, Inspector

__all__ = ["keep_history", "save_snapshot", "snapshot", "snapshot_of"]

_MOST_DEVICES = 64
_STATES = {0: "inactive", 1: "active_allocated", 2: "active_awaiting_free"}
_ACTIONS = ("alloc", "free_requested", "free_completed", "oom")


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


def save_snapshot(path: str | os.PathLike[str]) -> None:
    """Writes a file for PyTorch's memory viewer."""
    Path(path).write_bytes(pickle.dumps(snapshot()))


def keep_history(entries: int) -> None:
    """Keeps the last entries of what each allocator does, from now on.

    Args:
        entries: How many; 0 for none, as at first. Each takes 40 bytes.
    """
    call("keep_all_history", ctypes.c_uint64(entries))


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
        "segment_pool_id": (0, first.graph),
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


def _entry(entry: HistoryEntry) -> dict[str, Any]:
    action = _ACTIONS[entry.action]
    place = "device_free" if action == "oom" else "addr"
    return {
        "action": action,
        place: entry.at,
        "size": entry.size,
        "stream": entry.stream,
        "time_us": entry.time_us,
        "pool_id": (0, entry.graph),
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
