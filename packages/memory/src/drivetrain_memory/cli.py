"""The command `drivetrain-memory`, also `drivetrain memory`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core.commands import UsageError, integer, run_program
from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._limits import CHUNK_BYTES, MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_memory.trace import Trace

__all__ = ["main", "populate_parser"]

_GIB = 2**30


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    commands = parser.add_subparsers(metavar="COMMAND")
    trace = commands.add_parser(
        "trace",
        help="write a trace: of a named program, or from a snapshot of PyTorch's",
        allow_abbrev=False,
    )
    trace.add_argument(
        "source", metavar="SOURCE", help="a name (see list), or a snapshot's file"
    )
    trace.add_argument(
        "--anew",
        action="store_true",
        help="record a named program, which takes minutes",
    )
    trace.add_argument("-o", "--output", required=True, help="the file to write")
    trace.add_argument(
        "--device",
        type=integer(0),
        default=0,
        help="whose history of a snapshot (default: 0)",
    )
    trace.set_defaults(run=_trace)
    names = commands.add_parser(
        "list", help="list the programs and patterns by name", allow_abbrev=False
    )
    names.set_defaults(run=_list)
    replay = commands.add_parser(
        "replay", help="play a trace to one allocator", allow_abbrev=False
    )
    replay.add_argument("trace", metavar="TRACE", help="a trace's file, or a name")
    replay.add_argument(
        "--model", default="ours", help="the allocator (default: ours; see compare)"
    )
    replay.add_argument(
        "--capacity",
        type=_gib,
        metavar="GIB",
        help="of the device (default: 1.05 times the live peak)",
    )
    replay.set_defaults(run=_replay)
    compare = commands.add_parser(
        "compare",
        help="play traces to this allocator and to models of others",
        allow_abbrev=False,
    )
    compare.add_argument("traces", metavar="TRACE", nargs="+", help="files, or names")
    compare.add_argument(
        "--capacity",
        type=_gib,
        metavar="GIB",
        default=80 * _GIB,
        help="of the device that the largest batch is looked for (default: 80)",
    )
    compare.set_defaults(run=_compare)
    validate = commands.add_parser(
        "validate",
        help="hold the model of PyTorch's allocator against a snapshot",
        allow_abbrev=False,
    )
    validate.add_argument("snapshot", metavar="SNAPSHOT", help="a snapshot's file")
    validate.add_argument(
        "--device", type=integer(0), default=0, help="whose history (default: 0)"
    )
    validate.set_defaults(run=_validate)
    plot = commands.add_parser(
        "plot", help="draw a trace or a snapshot (PNG or HTML)", allow_abbrev=False
    )
    plot.add_argument(
        "source", metavar="SOURCE", help="a trace's or a snapshot's file, or a name"
    )
    plot.add_argument(
        "--at-peak",
        action="store_true",
        help="of a trace, this allocator's addresses when most is live",
    )
    plot.add_argument(
        "--capacity",
        type=_gib,
        metavar="GIB",
        help="of the device for that (default: 1.05 times the live peak)",
    )
    plot.add_argument(
        "-o", "--output", type=_picture, required=True, help="a .png or .html file"
    )
    plot.set_defaults(run=_plot)
    for command in (names, replay, compare, validate):
        command.add_argument(
            "--json", action="store_true", help="print JSON, for other programs"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["replay", "island", "--capacity", "5"])
        island on 5.0 GiB by ours: finished
          live at the peak      4.00 GiB
          reserved ...
        0
    """
    return run_program(
        "drivetrain-memory",
        populate_parser,
        argv,
        description="Traces of device memory, and allocators beside each other.",
    )


def _named(name: str) -> Trace:
    """Returns a trace by its file or its name."""
    from drivetrain_memory.trace import PATTERNS, WORKLOADS, Trace, pattern, workload

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


def _trace(args: argparse.Namespace) -> int:
    from drivetrain_memory.trace import WORKLOADS, from_snapshot

    if Path(args.source).exists():
        trace = from_snapshot(args.source, args.device)
    elif args.anew and args.source in WORKLOADS:
        from drivetrain_memory.trace import record_workload

        trace = record_workload(args.source)
    else:
        trace = _named(args.source)
    trace.save(args.output)
    print(
        f"{args.output}: {len(trace.events)} events, "
        f"{trace.peak_live_bytes / _GIB:.2f} GiB live at the peak"
    )
    return 0


def _list(args: argparse.Namespace) -> int:
    from drivetrain_memory._replay import MODELS
    from drivetrain_memory.trace import PATTERNS, WORKLOADS

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


def _replay(args: argparse.Namespace) -> int:
    from drivetrain_memory._replay import MODELS, replay

    if args.model not in MODELS:
        message = f"--model must be one of {', '.join(MODELS)}, got {args.model!r}"
        raise UsageError(message)
    trace = _named(args.trace)
    capacity = _capacity(args, trace)
    played = replay(trace, args.model, capacity_bytes=capacity)
    if args.json:
        fields = {name: getattr(played, name) for name in played.__slots__}
        print(json.dumps({"trace": trace.name, "capacity_bytes": capacity} | fields))
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


def _compare(args: argparse.Namespace) -> int:
    from drivetrain_memory._compare import compare, table

    traces = [_named(name) for name in args.traces]
    device = args.capacity
    rows = [row for trace in traces for row in compare(trace, device_bytes=device)]
    if args.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        print(table(rows))
    return 0


def _validate(args: argparse.Namespace) -> int:
    from drivetrain_memory._validate import validate

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


def _plot(args: argparse.Namespace) -> int:
    from drivetrain_memory._plot import plot_snapshot, plot_trace
    from drivetrain_memory._snapshot import snapshot_at_peak
    from drivetrain_memory.trace import load_snapshot

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


def _is_trace(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(8) == b"DTMTRACE"


def _capacity(args: argparse.Namespace, trace: Trace) -> int:
    """Returns the bytes of the device that was asked for."""
    if args.capacity is None:
        return max(int(1.05 * trace.peak_live_bytes), CHUNK_BYTES)
    capacity: int = args.capacity
    return capacity


def _picture(text: str) -> str:
    """Returns the path of a file that pictures can be written to."""
    if Path(text).suffix not in (".png", ".html"):
        message = f"pictures are .png or .html files, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    return text


def _gib(text: str) -> int:
    """Returns the bytes of a number of GiB that is written out."""
    try:
        size = float(text) * _GIB
    except ValueError:
        size = 0.0
    if not 1 <= size <= MOST_BYTES:
        message = f"a device has more than 0 and at most {2**20} GiB, not {text}"
        raise argparse.ArgumentTypeError(message)
    return int(size)


if __name__ == "__main__":
    sys.exit(main())
