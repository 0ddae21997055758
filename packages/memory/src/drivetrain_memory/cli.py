"""The command `drivetrain-memory`, also `drivetrain memory`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import deferred, integer, run_program
from drivetrain_memory._limits import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

_GIB = 2**30


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    commands = parser.add_subparsers(metavar="COMMAND")
    trace = _add(
        commands,
        "trace",
        "save_trace",
        "write a trace: of a named program, or from a snapshot of PyTorch's",
    )
    trace.add_argument(
        "source", metavar="SOURCE", help="a name (see list), or a snapshot's file"
    )
    trace.add_argument("-o", "--output", required=True, help="the file to write")
    trace.add_argument(
        "--device",
        type=integer(0),
        default=0,
        help="whose history of a snapshot (default: 0)",
    )
    names = _add(
        commands, "list", "list_names", "list the programs and patterns by name"
    )
    replay = _add(commands, "replay", "replay_trace", "play a trace to one allocator")
    replay.add_argument("trace", metavar="TRACE", help="a trace's file, or a name")
    replay.add_argument(
        "--model", default="ours", help="the allocator (default: ours; see compare)"
    )
    _add_capacity(replay, "of the device (default: 1.05 times the live peak)")
    compare = _add(
        commands,
        "compare",
        "compare_traces",
        "play traces to this allocator and to models of others",
    )
    compare.add_argument("traces", metavar="TRACE", nargs="+", help="files, or names")
    _add_capacity(
        compare,
        "of the device that the largest batch is looked for (default: 80)",
        80 * _GIB,
    )
    validate = _add(
        commands,
        "validate",
        "validate_snapshot",
        "hold the model of PyTorch's allocator against a snapshot",
    )
    validate.add_argument("snapshot", metavar="SNAPSHOT", help="a snapshot's file")
    validate.add_argument(
        "--device", type=integer(0), default=0, help="whose history (default: 0)"
    )
    plot = _add(commands, "plot", "plot", "draw a trace or a snapshot (PNG or HTML)")
    plot.add_argument(
        "source", metavar="SOURCE", help="a trace's or a snapshot's file, or a name"
    )
    plot.add_argument(
        "--at-peak",
        action="store_true",
        help="of a trace, this allocator's addresses when most is live",
    )
    _add_capacity(plot, "of the device for that (default: 1.05 times the live peak)")
    plot.add_argument(
        "-o", "--output", type=_picture, required=True, help="a .png or .html file"
    )
    for command in (names, replay, compare, validate):
        command.add_argument(
            "--json", action="store_true", help="print JSON, for other programs"
        )


def _add(commands: Any, name: str, run: str, what: str) -> argparse.ArgumentParser:
    """Adds a command that a function of `_cli.commands` carries out."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, allow_abbrev=False
    )
    parser.set_defaults(run=deferred(f"drivetrain_memory._cli.commands:{run}"))
    return parser


def _add_capacity(
    parser: argparse.ArgumentParser, what: str, default: int | None = None
) -> None:
    parser.add_argument(
        "--capacity", type=_gib, metavar="GIB", default=default, help=what
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
