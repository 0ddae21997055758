"""What the commands of `drivetrain-memory` carry out, from the parsed arguments."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core.commands import UsageError
from drivetrain_memory._compare import compare, table
from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._limits import CHUNK_BYTES
from drivetrain_memory._plot import plot_snapshot, plot_trace
from drivetrain_memory._replay import MODELS, replay
from drivetrain_memory._snapshot import snapshot_at_peak
from drivetrain_memory._validate import validate
from drivetrain_memory.trace import (
    PATTERNS,
    WORKLOADS,
    Trace,
    from_snapshot,
    load_snapshot,
    pattern,
    workload,
)

if TYPE_CHECKING:
    import argparse

_GIB = 2**30


def save_trace(args: argparse.Namespace) -> int:
    """Writes a trace to a file."""
    if Path(args.source).exists():
        trace = from_snapshot(args.source, args.device)
    else:
        trace = _named(args.source)
    trace.save(args.output)
    print(
        f"{args.output}: {len(trace.events)} events, "
        f"{trace.peak_live_bytes / _GIB:.2f} GiB live at the peak"
    )
    return 0


def list_names(args: argparse.Namespace) -> int:
    """Prints the names of programs, patterns and allocators."""
    found = {
        "programs": WORKLOADS,
        "patterns": list(PATTERNS),
        "allocators": list(MODELS),
    }
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    print("programs:")
    for name, what in WORKLOADS.items():
        print(f"  {name:<25} {what}")
    print(f"patterns: {', '.join(PATTERNS)}")
    print(f"allocators: {', '.join(MODELS)}")
    return 0


def replay_trace(args: argparse.Namespace) -> int:
    """Plays a trace to one allocator."""
    if args.model not in MODELS:
        message = f"--model must be one of {', '.join(MODELS)}, got {args.model!r}"
        raise UsageError(message)
    trace = _named(args.trace)
    capacity = _capacity(args, trace)
    played = replay(trace, args.model, capacity_bytes=capacity)
    if args.json:
        asked = {"trace": trace.name, "capacity_bytes": capacity}
        print(json.dumps(asked | dataclasses.asdict(played)))
        return 0
    end = "finished" if played.finished else "out of memory"
    print(f"{trace.name} on {capacity / _GIB:.1f} GiB by {args.model}: {end}")
    used = played.peak_live_bytes / max(played.peak_reserved_bytes, 1)
    rows = (
        ("live at the peak", f"{played.peak_live_bytes / _GIB:.2f} GiB"),
        (
            "reserved at the peak",
            f"{played.peak_reserved_bytes / _GIB:.2f} GiB ({100 * used:.1f}% used)",
        ),
        ("moved", f"{played.remapped_bytes / _GIB:.2f} GiB"),
        ("calls to the driver", f"{played.driver_calls}"),
        ("of the last step", f"{played.calls_by_step[-1]}"),
        ("flushes", f"{played.flushes}"),
        ("waits between streams", f"{played.stream_waits}"),
    )
    for label, value in rows:
        print(f"  {label:<21} {value}")
    return 0 if played.finished else 1


def compare_traces(args: argparse.Namespace) -> int:
    """Plays traces to several allocators."""
    traces = [_named(name) for name in args.traces]
    device = args.capacity
    rows = [row for trace in traces for row in compare(trace, device_bytes=device)]
    if args.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        print(table(rows))
    return 0


def validate_snapshot(args: argparse.Namespace) -> int:
    """Holds the model of PyTorch's allocator against a snapshot."""
    if not Path(args.snapshot).exists():
        message = (
            f"there is no file {args.snapshot!r}; validate takes a snapshot's file, and "
            "no program's name"
        )
        raise MemoryUseError(message)
    found = validate(args.snapshot, args.device)
    if args.json:
        print(json.dumps(dataclasses.asdict(found)))
    else:
        print(
            f"{found.model}: {found.same} of {found.recorded} segments as recorded"
            + (f"; {found.difference}" if found.difference else "")
        )
    return 0 if found.holds else 1


def plot(args: argparse.Namespace) -> int:
    """Draws a trace or a snapshot."""
    if Path(args.source).exists() and not _is_trace(args.source):
        plot_snapshot(load_snapshot(args.source), args.output)
    elif args.at_peak:
        trace = _named(args.source)
        capacity = _capacity(args, trace)
        plot_snapshot(snapshot_at_peak(trace, capacity_bytes=capacity), args.output)
    else:
        plot_trace(_named(args.source), args.output)
    print(args.output)
    return 0


def _named(name: str) -> Trace:
    """Returns a trace by its file or its name."""
    if Path(name).exists():
        return Trace.load(name)
    if name in PATTERNS:
        return pattern(name)
    if name in WORKLOADS:
        return workload(name)
    message = (
        f"there is no file and no program {name!r}; `drivetrain memory list` shows the "
        "names"
    )
    raise UsageError(message)


def _is_trace(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(8) == b"DTMTRACE"


def _capacity(args: argparse.Namespace, trace: Trace) -> int:
    """Returns the bytes of the device that was asked for."""
    if args.capacity is None:
        return max(int(1.05 * trace.peak_live_bytes), CHUNK_BYTES)
    capacity: int = args.capacity
    return capacity
