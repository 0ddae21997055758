"""Checkpoints of a loop: where it begins, and what it saves by itself or is asked for."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from drivetrain_core import DistributedError
from drivetrain_elastic._training._requested_checkpoint import RequestedCheckpoint

if TYPE_CHECKING:
    from drivetrain_core.services import Checkpointer
    from drivetrain_elastic._membership._rank_assignment import (
        MembershipSource,
        RankAssignment,
    )
    from drivetrain_elastic._training._training_state import Training

logger = logging.getLogger(__name__)


class Checkpoints:
    """Saves the state of a training, from the first copy of the model, and restores it.

    Args:
        saver: Of the script; None if it has none.
        save_every: After how many steps; 0 for never.
        membership: Says until when this worker has, and whether a checkpoint is wanted.
        training: What is saved.

    Attributes:
        requested: The checkpoint that this rank is asked for.
    """

    def __init__(
        self,
        saver: Checkpointer | None,
        save_every: int,
        membership: MembershipSource,
        training: Training,
    ) -> None:
        self._saver = saver
        self._save_every = save_every
        self._membership = membership
        self._training = training
        self._restored = 0
        self.requested = RequestedCheckpoint(membership)

    def restore(self) -> None:
        """Begins where the last checkpoint is, unless a rank turns out to be further."""
        if self._saver is None:
            return
        latest = self._saver.latest()
        is_here = latest is not None and latest <= self._restored
        if latest is None or (is_here and not self._training.is_torn):
            return
        entries: dict[str, Any] = self._training.entries()
        # Whatever is newest and whole: what was named may be damaged.
        restored = self._saver.restore(entries)
        self._training.set_entries(entries)
        self._restored = restored

    def begin_anew(self) -> None:
        """Finds the state that all ranks are to have, if none of them has it.

        Raises:
            DistributedError: There is none.
        """
        self.restore()
        if self._training.is_torn:
            message = (
                "the rank that had the state was lost while it sent it here, and no "
                "checkpoint has it: this rank has half of it, and cannot go on"
            )
            raise DistributedError(message)

    def is_due(self, assignment: RankAssignment) -> bool:
        """Returns whether the step that was made is to be saved.

        Args:
            assignment: Of this rank.
        """
        self.requested.is_saver = assignment.copy == 0
        is_due = self._save_every > 0 and self._training.step % self._save_every == 0
        return is_due or self.requested.is_agreed

    def save(self) -> None:
        """Saves it, where this rank is one that saves."""
        if not self.requested.is_saver:
            return
        step = self.requested.saved_step = self._training.step
        if self.requested.is_agreed:
            self.requested.save(self._saver, step, self._training.entries())
        elif self._saver is not None:
            self._saver.save(step, self._training.entries())

    def save_last(self) -> None:
        """Saves the last step, if no world makes the next one for now.

        The node that leaves may not be the one that saves, which then waits with the state.
        """
        entries = self._training.entries
        self.requested.save_last(self._saver, self._training.step, entries)

    def flush(self) -> None:
        """Waits for what is on its way to the disk, as long as this worker has."""
        self.save_last()
        if self._saver is None:
            return
        end_s = self._membership.end_s()
        if not self._saver.flush(None if end_s == math.inf else end_s):
            logger.warning("a checkpoint is not durable, and this node may go now")
