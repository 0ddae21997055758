"""The commands that write checkpoints: `convert` and `cp`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._cli import common
from drivetrain_checkpoint._copy import copy_checkpoint
from drivetrain_checkpoint._pick import pick

if TYPE_CHECKING:
    import argparse

__all__ = ["add"]


def add(commands: Any) -> None:
    """Adds the commands."""
    text = "write a checkpoint of any format in another one"
    convert = common.add_command(commands, "convert", text, _convert)
    convert.add_argument("source", type=common.place, help="a checkpoint of any format")
    convert.add_argument(
        "target",
        type=common.place,
        help="what is written: a file for torch, or a folder",
    )
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
    common.add_step(convert, "--step", text)
    text = "the job that the checkpoint is said to be of (default: %(default)s)"
    convert.add_argument("--job", default="converted", help=text)
    text = "copy a committed checkpoint to another folder or URL, and verify it"
    copy = common.add_command(commands, "cp", text, _copy)
    common.add_checkpoint(copy, "source")
    text = "the folder for checkpoints that it goes to"
    copy.add_argument("target", type=common.place, help=text)


def _convert(args: argparse.Namespace) -> int:
    # It needs torch, which the other commands do without.
    from drivetrain_checkpoint._convert import convert

    with common.progress(args, "convert") as tell:
        found = convert(
            args.source,
            args.target,
            args.to,
            step=args.step,
            job=args.job,
            options=args.options,
            progress=tell,
        )
    return _told(args, found)


def _copy(args: argparse.Namespace) -> int:
    picked = pick(common.existing(args.source), args.step, args.options)
    target = common.storage_at(args.target, args)
    with common.progress(args, f"copy step {picked.root.step}") as tell:
        found = copy_checkpoint(picked, target, tell)
    return _told(args, found)


def _told(args: argparse.Namespace, found: str) -> int:
    if args.json:
        common.say_json({"written": found})
    else:
        common.say(found)
    return 0
