"""The command `drivetrain-elastic`, also `drivetrain elastic`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from drivetrain_core.commands import number, run_program
from drivetrain_core.moved_commands import forward_command
from drivetrain_elastic._check_command import populate_check_parser
from drivetrain_elastic._demo_command import populate_demo_parser
from drivetrain_elastic._master_command import populate_master_parser
from drivetrain_elastic._run_command import populate_run_parser
from drivetrain_elastic._status_command import (
    add_master_options,
    client_of,
    populate_status_parsers,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["main", "populate_parser"]


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    commands = parser.add_subparsers(metavar="COMMAND")

    run = commands.add_parser(
        "run", help="train on this node, whatever dies", allow_abbrev=False
    )
    populate_run_parser(run)

    demo = commands.add_parser(
        "demo",
        help="train, kill workers, and see training go on",
        allow_abbrev=False,
    )
    populate_demo_parser(demo)

    master = commands.add_parser(
        "master", help="serve a job until a signal ends it", allow_abbrev=False
    )
    populate_master_parser(master)

    populate_status_parsers(commands)
    for name, help_text, ask in (
        ("leave", "let a node go at the end of a step", _leave),
        ("stop", "end the job", _stop),
        ("readmit", "let a machine that was excluded take part again", _readmit),
    ):
        one = commands.add_parser(name, help=help_text, allow_abbrev=False)
        add_master_options(one)
        one.set_defaults(run=ask)
        if ask is _readmit:
            one.add_argument("machine", metavar="MACHINE")
            continue
        one.add_argument("--reason", default="somebody asked for it", metavar="TEXT")
        if ask is _leave:
            one.add_argument("node", metavar="NODE")
            one.add_argument(
                "--within-s",
                type=number(0),
                default=30.0,
                metavar="SECONDS",
                help="after which its workers are ended",
            )
    check = commands.add_parser(
        "check", help="find faulty nodes before they train", allow_abbrev=False
    )
    populate_check_parser(check)
    for word in ("diagnose", "faults"):
        forward_command(commands, word, f"health {word}")
    for word in ("goodput", "supervise", "operator", "cost", "simulate-spot"):
        forward_command(commands, word, f"cloud {word}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["status", "--token-file", "none"])
        1
    """
    return run_program(
        "drivetrain-elastic",
        populate_parser,
        argv,
        description="Training that outlives its machines.",
    )


def _leave(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.protocol import messages as pb

    request = pb.LeaveRequest(
        node=arguments.node, within_s=arguments.within_s, reason=arguments.reason
    )
    with client_of(arguments) as client:
        client.call("Leave", request)
    return 0


def _readmit(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.protocol import messages as pb

    with client_of(arguments) as client:
        client.call("Readmit", pb.ReadmitRequest(machine=arguments.machine))
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.protocol import messages as pb

    with client_of(arguments) as client:
        client.call("Stop", pb.StopRequest(reason=arguments.reason))
    return 0


if __name__ == "__main__":
    sys.exit(main())
