"""The command `drivetrain-checkpoint`, also `drivetrain checkpoint`.

The exit status is 0 if all is well, 1 if something is wrong, and 2 if the command is
not understood.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from drivetrain_checkpoint._commands import parsers
from drivetrain_core.commands import run_program

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    parsers.populate_parser(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     main(["ls", folder])
        STEP  JOB  SAVED  RANKS  BYTES  FOLDER
        0
    """
    return run_program(
        "drivetrain-checkpoint", populate_parser, argv, description="Checkpoints."
    )


if __name__ == "__main__":
    sys.exit(main())
