"""The command `cp`, which copies a checkpoint to another folder or URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_checkpoint._commands import common
from drivetrain_checkpoint._storage.copy_checkpoint import copy_checkpoint

if TYPE_CHECKING:
    import argparse


def copy(args: argparse.Namespace) -> int:
    """Copies a checkpoint, and prints where."""
    checkpoint = common.open_existing(args.source, args)
    target = common.storage_at(args.target, args)
    with common.progress(args, f"copy step {checkpoint.root.step}") as tell:
        found = copy_checkpoint(checkpoint, target, tell)
    common.say_written(args, found)
    return 0
