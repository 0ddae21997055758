"""The command `drivetrain-elastic`, also `drivetrain elastic`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from drivetrain_core.cli import main as run_drivetrain
from drivetrain_core.commands import deferred, integer, run_program
from drivetrain_elastic._commands._check_options import populate_check_parser
from drivetrain_elastic._commands._job_options import populate_job_parsers
from drivetrain_elastic._commands._master_options import populate_master_parser
from drivetrain_elastic._commands._run_options import populate_run_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

_MOVED = {
    **dict.fromkeys(("diagnose", "faults"), "health"),
    **dict.fromkeys(
        ("cost", "goodput", "operator", "simulate-spot", "supervise"), "cloud"
    ),
}
"""Commands that are those of another package now; their old names warn."""


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    commands = parser.add_subparsers(metavar="COMMAND")

    def add(
        name: str, help_text: str, populate: Callable[[argparse.ArgumentParser], None]
    ) -> None:
        populate(commands.add_parser(name, help=help_text, allow_abbrev=False))

    add("run", "train on this node, whatever dies", populate_run_parser)
    add("demo", "train, kill workers, and see training go on", _populate_demo_parser)
    add("master", "serve a job until a signal ends it", populate_master_parser)
    populate_job_parsers(commands)
    add("check", "find faulty nodes before they train", populate_check_parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["status", "--token-file", "none"])
        1
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and (package := _MOVED.get(words[0])):
        text = f"drivetrain-elastic {words[0]} is now drivetrain {package} {words[0]}\n"
        sys.stderr.write(text)
        return run_drivetrain([package, *words])
    return run_program(
        "drivetrain-elastic",
        populate_parser,
        argv,
        description="Training that outlives its machines.",
    )


def _populate_demo_parser(parser: argparse.ArgumentParser) -> None:
    for name, least, default in (("workers", 1, 4), ("kills", 0, 3), ("steps", 1, 200)):
        parser.add_argument(
            f"--{name}", type=integer(least), default=default, metavar="N"
        )
    parser.set_defaults(run=deferred("drivetrain_elastic._commands._demo:run"))


if __name__ == "__main__":
    sys.exit(main())
