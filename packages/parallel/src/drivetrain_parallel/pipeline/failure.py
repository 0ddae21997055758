"""Tells the ranks of a pipeline which of them failed, and why."""

from __future__ import annotations

import json
import logging

import torch.distributed as dist

from drivetrain_core import DistributedError, DrivetrainError

logger = logging.getLogger(__name__)

_KEY = "drivetrain/pipeline/failure"


class FailureBoard:
    """A place in a process group's store for the first failure of a run.

    A rank that raises within a schedule leaves the others waiting for its messages
    until the group's timeout. What they then see is a broken connection; what they
    should be told is here.

    Args:
        group: The ranks of the pipeline.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Finds the store, which is the group's own."""
        # Of the whole job, as a user knows it, and not of this pipeline.
        self._rank = dist.get_rank()
        # Older versions of torch do not hand it out; peers then see the timeout alone.
        store_of = getattr(group, "get_group_store", None)
        self._store = store_of() if store_of is not None else None

    def post(self, stages: tuple[int, ...], error: BaseException) -> str:
        """Writes a failure down unless there is one, and returns the first one.

        Args:
            stages: The stages of this rank.
            error: What it raised.

        Returns:
            What happened on another rank; empty when this one was the first, or the
            store cannot be reached.
        """
        root = _root(error)
        mine = {
            "rank": self._rank,
            "stages": list(stages),
            "error": f"{type(root).__name__}: {root}"[:2000],
        }
        text = json.dumps(mine)
        if self._store is None:
            return ""
        try:
            found = self._store.compare_set(_KEY, "", text).decode()
        except Exception as broken:  # noqa: BLE001 - the store may have died with a rank
            logger.warning("cannot tell other ranks of a failure: %s", broken)
            return ""
        if found == text:
            return ""
        first = json.loads(found)
        return f"stages {first['stages']} (rank {first['rank']}): {first['error']}"

    def explain(self, stages: tuple[int, ...], error: BaseException) -> BaseException:
        """Returns the error to raise: this rank's own, or that of the first one.

        Args:
            stages: The stages of this rank.
            error: What it raised.
        """
        first = self.post(stages, error)
        if not first:
            # Schedules wrap what a stage raises into an error of their own.
            root = _root(error)
            return root if isinstance(root, DrivetrainError) else error
        message = (
            f"the pipeline broke on another rank, {first}. This rank only saw: {error}"
        )
        return DistributedError(message)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
