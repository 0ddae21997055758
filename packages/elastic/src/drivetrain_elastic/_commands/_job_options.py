"""Options of the commands that ask the master of a job, which show it or change it."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import add_options, deferred, number
from drivetrain_elastic._commands._address_options import addresses

if TYPE_CHECKING:
    import argparse

_SHOWN = {
    "status": "how the job stands",
    "nodes": "who trains where, how fast, and what is wrong there",
    "shards": "how far each dataset is",
    "ledger": "where the time of the job has gone, with each cause",
    "events": "what has happened",
}


def populate_job_parsers(commands: Any) -> None:
    """Adds the commands to those of a parser.

    Args:
        commands: What `add_subparsers` has returned.
    """
    for name, help_text in _SHOWN.items():
        one = _add_command(commands, name, help_text, "_status")
        one.add_argument(
            "--json", action="store_true", help="one JSON object a line, for programs"
        )
        if name == "events":
            one.add_argument(
                "--follow", action="store_true", help="and what is to come"
            )
        elif name in {"status", "nodes"}:
            one.add_argument(
                "--watch", action="store_true", help="show it live, until Ctrl-C"
            )
    leave, stop, readmit = (
        _add_command(commands, name, help_text, "_requests")
        for name, help_text in (
            ("leave", "let a node go at the end of a step"),
            ("stop", "end the job"),
            ("readmit", "let a machine that was excluded take part again"),
        )
    )
    for one in leave, stop:
        one.add_argument("--reason", default="somebody asked for it", metavar="TEXT")
    leave.add_argument("node", metavar="NODE")
    leave.add_argument(
        "--within-s",
        type=number(0),
        default=30.0,
        metavar="SECONDS",
        help="after which its workers are ended",
    )
    readmit.add_argument("machine", metavar="MACHINE")


def _add_command(
    commands: Any, name: str, help_text: str, module: str
) -> argparse.ArgumentParser:
    """Adds a command that a function of its name carries out, and returns its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, allow_abbrev=False
    )
    add_options(parser, files(__package__) / "job_options.toml", addresses=addresses)
    parser.set_defaults(run=deferred(f"drivetrain_elastic._commands.{module}:{name}"))
    return parser
