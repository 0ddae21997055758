"""The command `drivetrain-memory`, also `drivetrain memory`."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core.commands import add_commands, run_program
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
    add_commands(
        parser, files(__package__) / "commands.toml", gib=_gib, picture=_picture
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
