"""A checkpoint that the job asks for, since a node will be taken away."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_core.services import Checkpointer, SaveHandle
    from drivetrain_elastic._seat import SaveOrder, SeatSource

__all__ = ["OrderedSave"]

logger = logging.getLogger(__name__)


class OrderedSave:
    """Carries out what a rank is asked to save; used from the thread of its training.

    Rank 0 tells the others with the gradients of a step, so that all of them save after the
    same one. Until it is durable every rank keeps the order, and whoever becomes rank 0
    meanwhile repeats it.

    Args:
        seats: Whence orders come, and where it is told what became of them.

    Attributes:
        is_agreed: Whether all ranks save after the step whose gradients came last.
    """

    def __init__(self, seats: SeatSource) -> None:
        self._seats = seats
        self._taken = ""
        self.is_agreed = False

    def is_due(self) -> bool:
        """Whether there is an order that this rank has not taken."""
        order = self._seats.save_order()
        return order is not None and order.request != self._taken

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
        order = self._seats.save_order()
        if order is not None:
            self._taken = order.request
        began_s = time.monotonic()
        if checkpointer is None:
            self._tell(order, step, began_s, "the script has no checkpointer")
            return
        try:
            handle = checkpointer.save(step, state)
        except CheckpointError as error:
            self._tell(order, step, began_s, str(error))
            return
        if order is None:
            return
        if handle.done:
            self._watch(handle, order, began_s)
            return
        threading.Thread(
            target=self._watch,
            args=(handle, order, began_s),
            name="drivetrain-ordered-save",
            daemon=True,
        ).start()

    def _watch(self, handle: SaveHandle, order: SaveOrder, began_s: float) -> None:
        failure = ""
        try:
            if not handle.wait(max(0.0, order.end_s - time.monotonic())):
                failure = "it was not durable in time"
        except CheckpointError as error:
            failure = str(error)
        self._tell(order, handle.step, began_s, failure)

    def _tell(
        self, order: SaveOrder | None, step: int, began_s: float, failure: str
    ) -> None:
        seconds = time.monotonic() - began_s
        if failure:
            logger.warning("the checkpoint of step %d has failed: %s", step, failure)
        if order is not None:
            self._seats.report_saved(order, step, seconds, failure)
