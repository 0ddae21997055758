"""The command `drivetrain-comm`, also `drivetrain comm`."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_comm._cli.common import schedule_file, size, sizes
from drivetrain_core.cli import main as run_drivetrain
from drivetrain_core.commands import add_commands, run_program

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_MOVED = {"topo": "topo", "fabric": "simulate"}
"""Commands that are those of drivetrain-fabric now; their old names warn."""


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    kinds = {"size": size, "sizes": sizes, "schedule_file": schedule_file}
    add_commands(parser, files(f"{__package__}._cli") / "commands.toml", **kinds)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["tune", "--out", "table.csv"])
        2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and (name := _MOVED.get(words[0])):
        text = f"drivetrain-comm {words[0]} is now drivetrain fabric {name}\n"
        sys.stderr.write(text)
        return run_drivetrain(["fabric", name, *words[1:]])
    return run_program(
        "drivetrain-comm",
        populate_parser,
        argv,
        description="Communication of distributed training.",
    )


if __name__ == "__main__":
    sys.exit(main())
