"""The command `gc`, which deletes checkpoints that need not be kept."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._cli import common
from drivetrain_checkpoint._manifest import ROOT_FILE
from drivetrain_checkpoint._saves import Keep, Saved, abandoned, list_saved, retired
from drivetrain_core import CheckpointError
from drivetrain_core.commands import integer, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["add", "superfluous"]


def add(commands: Any) -> None:
    """Adds the command."""
    text = "delete old checkpoints and abandoned saves; never a job's newest"
    gc = common.add_command(commands, "gc", text, _gc)
    text = "where checkpoints are saved, a path or an URL"
    gc.add_argument("folder", type=common.place, help=text)
    gc.add_argument(
        "--keep",
        type=integer(1),
        required=True,
        help="how many of each job's newest stay",
    )
    gc.add_argument(
        "--every", type=integer(1), help="steps that are a multiple of this stay, too"
    )
    gc.add_argument(
        "--older-than",
        type=number(0),
        default=0.0,
        metavar="HOURS",
        help="what was saved later stays, too",
    )
    gc.add_argument(
        "--dry-run", action="store_true", help="only say what would be deleted"
    )


def superfluous(
    saved: Sequence[Saved], keep: Keep, now_s: float, older_than_s: float
) -> list[str]:
    """Returns the folders of the checkpoints that may go.

    Args:
        saved: What is committed, the one saved last at the end.
        keep: What stays, of each job.
        now_s: The time, in seconds since 1970.
        older_than_s: How old what goes is at least, in seconds.
    """
    newest = {one.root.job: one.root for one in saved}
    gone = [one for root in newest.values() for one in retired(saved, root, keep)]
    before_ns = (now_s - older_than_s) * 1e9
    return [one.name for one in gone if one.root.saved_at_ns <= before_ns]


def _gc(args: argparse.Namespace) -> int:
    storage = common.storage_at(common.existing(args.folder), args)
    saved = list_saved(storage)
    if not saved:
        message = f"{storage.url} has no committed checkpoint: nothing is deleted"
        raise CheckpointError(message)
    keep = Keep(last=args.keep, every=args.every)
    old = superfluous(saved, keep, time.time(), 3600 * args.older_than)
    lost = abandoned(storage)
    for name in [*old, *lost]:
        if not args.dry_run:
            storage.remove(name, ROOT_FILE)
        if not args.json:
            does = "would be deleted" if args.dry_run else "deleted"
            why = "never committed" if name in lost else "old"
            common.say(f"{does}: {name} ({why})")
    if args.json:
        common.say_json({"old": old, "abandoned": lost, "deleted": not args.dry_run})
    elif not old and not lost:
        common.say(f"all {len(saved)} checkpoints are kept")
    return 0
