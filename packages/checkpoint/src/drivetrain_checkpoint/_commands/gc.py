"""The command `gc`, which deletes checkpoints that need not be kept."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint._commands import common
from drivetrain_checkpoint._errors import (
    CorruptCheckpointError,
    ForeignCheckpointError,
)
from drivetrain_checkpoint._layout.manifest import ROOT_FILE
from drivetrain_checkpoint._storage.catalog import (
    Keep,
    Saved,
    abandoned,
    list_saved,
    retired,
)
from drivetrain_checkpoint._storage.checked_source import StorageSource
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from drivetrain_checkpoint._storage.protocol import Storage

logger = logging.getLogger(__name__)


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
    # Who asks for it means those too that a training has gone back behind.
    gone = [
        one
        for root in newest.values()
        for one in retired(saved, root, keep, ahead=True)
    ]
    before_ns = (now_s - older_than_s) * 1e9
    return [one.name for one in gone if one.root.saved_at_ns <= before_ns]


def _problem_of(storage: Storage, one: Saved) -> str:
    """Returns which file a checkpoint lacks, or nothing; what is in them is not read."""
    try:
        for rank in range(one.root.world_size):
            StorageSource.committed(storage, one.name, one.root, rank)
    except (CorruptCheckpointError, ForeignCheckpointError) as error:
        return str(error)
    return ""


def collect(args: argparse.Namespace) -> int:
    """Deletes checkpoints that need not be kept, and prints which."""
    storage = common.storage_at(common.existing(args.folder), args)
    saved = list_saved(storage)
    if not saved:
        message = f"{storage.url} has no committed checkpoint: nothing is deleted"
        raise CheckpointError(message)
    problems = {one.name: _problem_of(storage, one) for one in saved}
    for problem in filter(None, problems.values()):
        logger.warning("it counts for nothing: %s", problem)
    whole = [one for one in saved if not problems[one.name]]
    keep = Keep(last=args.keep, every=args.every)
    old = superfluous(whole, keep, time.time(), 3600 * args.older_than)
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
