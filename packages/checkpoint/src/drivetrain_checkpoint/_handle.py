"""One save on its way to storage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._manifest import ROOT_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from drivetrain_checkpoint._client import Client

__all__ = ["SaveHandle"]

_POLL_S = 0.02


class SaveHandle:
    """A save whose state lies safely in memory; storage follows.

    It may be used from any thread.

    Args:
        step: The step that was saved.
        save_id: What its files have in common.
        stall_s: How long the trainer was held up, in seconds.
        folder: Where checkpoints go.
        client: Made for this handle alone.
    """

    def __init__(
        self, *, step: int, save_id: str, stall_s: float, folder: Path, client: Client
    ) -> None:
        """Begins to watch a save."""
        self.step = step
        self.save_id = save_id
        self.stall_s = stall_s
        self._root = folder / f"step-{step:010d}-{save_id}" / ROOT_FILE
        self._client = client
        self._error: str | None = None
        self._durable = False

    @property
    def durable(self) -> bool:
        """Whether the checkpoint would survive the loss of every process and memory."""
        self._durable = self._durable or self._root.exists()
        return self._durable

    @property
    def done(self) -> bool:
        """Whether nothing more will happen: it is durable, or it failed."""
        return self.durable or self._failure(0.0) is not None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the save is durable.

        Args:
            timeout_s: The longest wait in seconds; None is without limit.

        Returns:
            Whether it is durable; False when the time was up.

        Raises:
            StorageError: It failed; earlier checkpoints are as they were.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.durable:
            left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
            failure = self._failure(max(0.0, left))
            if failure is not None and not self.durable:
                message = f"step {self.step} was not saved: {failure}"
                raise StorageError(message)
            if deadline is not None and time.monotonic() >= deadline:
                return self.durable
        return True

    def _failure(self, timeout_s: float) -> str | None:
        """Returns what went wrong on this node, if anything did."""
        if self._error is None:
            question = {"op": "wait", "save_id": self.save_id, "timeout_s": timeout_s}
            answer = self._client.ask(question)
            if answer["state"] == "failed":
                self._error = answer["error"]
            elif answer["state"] != "pending":
                # Written here; the commit follows when all ranks have written.
                time.sleep(min(_POLL_S, timeout_s))
        return self._error
