"""Parsers of the commands; what a command carries out is imported when it runs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._storage.open import resolve
from drivetrain_core.commands import deferred, integer, number


def add_commands(commands: Any) -> None:
    """Adds all commands.

    Args:
        commands: The sub-parsers.
    """
    _add_look(commands)
    _add_convert(commands)
    _add_gc(commands)
    _add_daemon(commands)


def _add_look(commands: Any) -> None:
    text = "list the committed checkpoints of a folder"
    listing = _command(commands, "ls", text, "look:list_committed")
    text = "where checkpoints are saved, a path or an URL"
    listing.add_argument("folder", type=_place, help=text)
    text = "list the tensors of a checkpoint"
    _add_checkpoint(_command(commands, "inspect", text, "look:inspect"))
    text = "compare every byte of a checkpoint with its checksums"
    _add_checkpoint(_command(commands, "verify", text, "look:verify_checkpoint"))
    text = "compare two checkpoints of any format; exit status 1 if they differ"
    diff = _command(commands, "diff", text, "diff:diff")
    diff.add_argument("one", type=_place, help="a checkpoint")
    diff.add_argument("two", type=_place, help="another")
    _add_step(diff, "--step-one", "which one of a folder; the newest")
    _add_step(diff, "--step-two", "likewise")


def _add_convert(commands: Any) -> None:
    text = "write a checkpoint of any format in another one"
    convert = _command(commands, "convert", text, "convert:convert")
    convert.add_argument("source", type=_place, help="a checkpoint of any format")
    text = "what is written: a file for torch, or a folder"
    convert.add_argument("target", type=_place, help=text)
    convert.add_argument(
        "--to",
        required=True,
        choices=["safetensors", "dcp", "torch", "drivetrain"],
        help="the format; safetensors holds tensors only, and leaves plain data out",
    )
    text = (
        "which checkpoint of a folder of them (default: the newest); the step of one "
        "that has none"
    )
    _add_step(convert, "--step", text)
    text = "the job that the checkpoint is said to be of (default: %(default)s)"
    convert.add_argument("--job", default="converted", help=text)
    text = "copy a committed checkpoint to another folder or URL, and verify it"
    copy = _command(commands, "cp", text, "copy:copy")
    _add_checkpoint(copy, "source")
    text = "the folder for checkpoints that it goes to"
    copy.add_argument("target", type=_place, help=text)


def _add_gc(commands: Any) -> None:
    text = "delete old checkpoints and abandoned saves; never a job's newest"
    gc = _command(commands, "gc", text, "gc:collect")
    text = "where checkpoints are saved, a path or an URL"
    gc.add_argument("folder", type=_place, help=text)
    text = "how many of each job's newest stay"
    gc.add_argument("--keep", type=integer(1), required=True, help=text)
    text = "steps that are a multiple of this stay, too"
    gc.add_argument("--every", type=integer(1), help=text)
    gc.add_argument(
        "--older-than",
        type=number(0),
        default=0.0,
        metavar="HOURS",
        help="what was saved later stays, too",
    )
    text = "only say what would be deleted"
    gc.add_argument("--dry-run", action="store_true", help=text)


def _add_daemon(commands: Any) -> None:
    text = "start the daemon of this node, look at it, or stop it"
    daemon = _command(commands, "daemon", text, "daemon:daemon")
    daemon.add_argument("action", choices=["start", "status", "stop"])
    text = "stop although saves are still being written"
    daemon.add_argument("--at-once", action="store_true", help=text)
    text = "bring what the daemon of this node holds in memory to storage"
    recover = _command(commands, "recover", text, "daemon:recover")
    recover.add_argument(
        "--timeout",
        type=number(0, can_be_inf=True),
        default=600.0,
        metavar="SECONDS",
        help="how long to wait",
    )
    for command in (daemon, recover):
        text = "where the job's checkpoints go"
        command.add_argument("folder", type=_place, help=text)
        command.add_argument("--job", default="default", help="the job's name")


def _command(
    commands: Any, name: str, text: str, target: str
) -> argparse.ArgumentParser:
    """Adds a command with the options that all have.

    Args:
        commands: The sub-parsers.
        name: What it is called.
        text: What it does.
        target: What carries it out, as `module:function` beside this module.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, allow_abbrev=False
    )
    text = "print JSON, for other programs"
    parser.add_argument("--json", action="store_true", help=text)
    parser.add_argument(
        "--storage-option",
        dest="options",
        metavar="KEY=VALUE",
        action="append",
        type=_option,
        default=[],
        help="what fsspec is to know of URLs; the value is JSON, or else text",
    )
    run = deferred(f"drivetrain_checkpoint._commands.{target}")
    parser.set_defaults(run=run)
    return parser


def _add_checkpoint(parser: argparse.ArgumentParser, name: str = "checkpoint") -> None:
    """Adds the arguments that say which committed checkpoint is meant."""
    text = "its folder, or the one it was saved to"
    parser.add_argument(name, type=_place, help=text)
    _add_step(parser, "--step", "which one of a folder; the newest")


def _add_step(parser: argparse.ArgumentParser, option: str, text: str) -> None:
    parser.add_argument(option, type=integer(0), help=text)


def _place(text: str) -> str:
    """Returns a path or an URL as it was typed, if it can be one."""
    try:
        resolve(text)
    except (StorageError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _option(text: str) -> tuple[str, Any]:
    key, is_there, value = text.partition("=")
    if not key or not is_there:
        message = f"KEY=VALUE is expected, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
