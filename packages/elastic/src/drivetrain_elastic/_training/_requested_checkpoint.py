"""Requested checkpoint: one that the job asks for, since a node will be taken away."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from drivetrain_core import CheckpointError
from drivetrain_elastic.decisions.leaving import NO_CHECKPOINTER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drivetrain_core.services import Checkpointer, SaveHandle
    from drivetrain_elastic._membership._rank_assignment import (
        CheckpointRequest,
        MembershipSource,
    )

logger = logging.getLogger(__name__)


class RequestedCheckpoint:
    """Saves the checkpoint that a rank is asked for; used from the thread of its training.

    Rank 0 tells the others with the gradients of a step, so that all of them save after the
    same one. Until it is durable every rank keeps the request, and the rank that becomes 0
    meanwhile repeats it.

    Args:
        membership: Where requests come from, and where their results are told.

    Attributes:
        is_agreed: Whether all ranks save after the step whose gradients came last.
        is_saver: Whether this rank saved, or would have, after the last step.
        saved_step: The last step that was saved here, for whatever reason.
    """

    def __init__(self, membership: MembershipSource) -> None:
        self._membership = membership
        self._taken = ""
        self.is_agreed = self.is_saver = False
        self.saved_step = 0

    def is_due(self) -> bool:
        """Whether there is a request that this rank has not taken."""
        request = self._membership.checkpoint_request()
        return request is not None and request.id != self._taken

    def save_last(
        self,
        checkpointer: Checkpointer | None,
        step: int,
        entries: Callable[[], Mapping[str, object]],
    ) -> None:
        """Saves the last step that was made here, if nobody makes another one now.

        A request comes while steps are made: the last one may be later than the one that
        was saved.

        Args:
            checkpointer: Of the script; None if it has none.
            step: The last step that counts.
            entries: Returns what belongs to it.
        """
        latest = self._membership.latest()
        goes_on = latest is None or bool(latest.members)
        if goes_on or not self.is_saver or self.saved_step >= step:
            return
        if checkpointer is not None or self.is_due():
            self.save(checkpointer, step, entries())

    def save(
        self, checkpointer: Checkpointer | None, step: int, state: Mapping[str, object]
    ) -> None:
        """Saves, and tells whoever asked when it is durable.

        That it fails is told, too, and does not end the training: it is then no worse off
        than before.

        Args:
            checkpointer: Of the script; None if it has none.
            step: The last step that counts.
            state: What belongs to it.
        """
        request = self._membership.checkpoint_request()
        if request is not None:
            self._taken = request.id
        began_s = time.monotonic()
        if checkpointer is None:
            self._tell(request, step, began_s, NO_CHECKPOINTER)
            return
        try:
            handle = checkpointer.save(step, state)
        except CheckpointError as error:
            self._tell(request, step, began_s, str(error))
            return
        if request is None:
            return
        if handle.done:
            self._watch(handle, request, began_s)
            return
        threading.Thread(
            target=self._watch,
            args=(handle, request, began_s),
            name="drivetrain-requested-checkpoint",
        ).start()

    def _watch(
        self, handle: SaveHandle, request: CheckpointRequest, began_s: float
    ) -> None:
        failure = ""
        try:
            if not handle.wait(max(0.0, request.end_s - time.monotonic())):
                failure = "it was not durable in time"
        except CheckpointError as error:
            failure = str(error)
        self._tell(request, handle.step, began_s, failure)

    def _tell(
        self, request: CheckpointRequest | None, step: int, began_s: float, failure: str
    ) -> None:
        seconds = time.monotonic() - began_s
        if failure:
            logger.warning("the checkpoint of step %d has failed: %s", step, failure)
        if request is not None:
            self._membership.report_saved(request, step, seconds, failure)
