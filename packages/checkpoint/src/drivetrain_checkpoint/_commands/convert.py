"""The command `convert`, which writes a checkpoint in another format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_checkpoint._commands import common
from drivetrain_checkpoint._formats.convert import convert as write_as

if TYPE_CHECKING:
    import argparse


def convert(args: argparse.Namespace) -> int:
    """Writes a checkpoint in another format, and prints where."""
    with common.progress(args, "convert") as tell:
        found = write_as(
            args.source,
            args.target,
            args.to,
            step=args.step,
            job=args.job,
            options=dict(args.options),
            progress=tell,
        )
    common.say_written(args, found)
    return 0
