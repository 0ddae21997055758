"""Options of the command `drivetrain-health diagnose`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.commands import deferred, integer

if TYPE_CHECKING:
    import argparse


def populate_diagnose_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help="what a worker, or a launcher, has written, - for the standard input; may be "
        "given again, once for each worker",
    )
    parser.add_argument(
        "--error",
        action="append",
        default=[],
        metavar="FILE",
        help="the exception of a worker, as torchelastic and this package write it",
    )
    parser.add_argument(
        "--exit-code",
        # PBS says 256 more than the number of a signal.
        type=integer(-64, 287),
        metavar="NUMBER",
        help="of the worker; -9 and 137 both mean that signal 9 has ended it",
    )
    parser.add_argument(
        "--kernel",
        metavar="FILE",
        help="messages of the node's kernel, as dmesg or journalctl -k print them",
    )
    parser.add_argument(
        "--node", default="the node", metavar="NAME", help="where it ran"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=deferred("drivetrain_health._commands._diagnose:run"))
