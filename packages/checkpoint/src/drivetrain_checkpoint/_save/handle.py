"""Save handle: how far one save is on its way from memory to storage."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Literal

from drivetrain_checkpoint._errors import DaemonError, StorageError
from drivetrain_checkpoint._layout.manifest import ROOT_FILE
from drivetrain_checkpoint._storage.protocol import folder_name
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from drivetrain_checkpoint._daemon.client import Client
    from drivetrain_checkpoint._storage.protocol import Storage

_SLICE_S = 0.5
_LOST_S = 10.0


class SaveHandle:
    """A save whose state lies safely in memory, or will soon; storage follows.

    It may be used from any thread.

    Args:
        step: The step that was saved.
        save_id: What its files have in common.
        storage: Where the save goes.
        under: The folder in that of the checkpointer.
        client: The way to the daemon, shared with others.
        staging: Ends when the state lies in memory.

    Attributes:
        step: The step that was saved.
        save_id: What its files have in common.
        stall_s: How long `save` held up the trainer, in seconds.
        skipped: Whether the save was left out, since an earlier one was being written.
    """

    def __init__(
        self,
        *,
        step: int,
        save_id: str,
        storage: Storage,
        under: str,
        client: Client,
        staging: Future[None] | None = None,
        skipped: bool = False,
    ) -> None:
        """Begins to watch a save."""
        self.step = step
        self.save_id = save_id
        self.stall_s = 0.0
        self.skipped = skipped
        self._storage = storage
        self._under = under
        self._client = client
        self._waiting = client.beside()
        self._staging = staging
        self._unknown_since: float | None = None
        self._durable = False

    @property
    def staged(self) -> bool:
        """Whether the state lies in memory that outlives the trainer."""
        if self._staging is None:
            return not self.skipped
        return self._staging.done() and self._staging.exception() is None

    @property
    def durable(self) -> bool:
        """Whether the checkpoint would survive the loss of every process and memory."""
        if not self._durable and self.staged:
            self._durable = self._ask(0.0)["state"] == "committed"
        return self._durable

    def outcome(self, client: Client | None = None) -> dict[str, Any]:
        """Returns what is known of the save, without a wait.

        Args:
            client: The conversation to ask in, if it is not the usual one.
        """
        if self.skipped or not self.staged:
            return {"state": "skipped" if self.skipped else "unknown"}
        return {"state": "committed"} if self._durable else self._ask(0.0, client)

    @property
    def replicated(self) -> bool:
        """Whether other nodes hold it in memory, as many as were asked for."""
        if not self.staged:
            return False
        answer = self._ask(0.0)
        return bool(answer.get("replicated")) and not answer.get("lost_replicas")

    @property
    def done(self) -> bool:
        """Whether nothing more will happen: it is durable, failed, or was left out."""
        if self.skipped or self.durable:
            return True
        if self._staging is not None and not self._staging.done():
            return False
        return not self.staged or self._ask(0.0)["state"] == "failed"

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        until: Literal["staged", "replicated", "durable"] = "durable",
    ) -> bool:
        """Waits until the save is durable, or as far as is asked.

        A save that was to stay in memory is brought to storage now.

        Args:
            timeout_s: The longest wait in seconds; None is without limit.
            until: How far the save is to be.

        Returns:
            Whether it is so; False when the time was up, or the save was skipped.

        Raises:
            StorageError: It failed; earlier checkpoints are as they were.
            CheckpointError: It was dropped for a newer save, or has no replica.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if self.skipped:
            return False
        if self._staging is not None:
            try:
                self._staging.result(None if timeout_s == math.inf else timeout_s)
            except TimeoutError:
                return False
        if until == "staged":
            return True
        while not (self.durable if until == "durable" else self.replicated):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._check(_SLICE_S if left is None else min(_SLICE_S, left), until)
        # A daemon that nobody talks to ends after a while; handles may be kept.
        self._waiting.close()
        return True

    def _check(self, timeout_s: float, until: str) -> None:
        """Waits a while for news, and raises if it is bad."""
        answer = self._ask(timeout_s)
        if answer["state"] == "staged" and until == "durable":
            self._client.ask({"op": "persist"})
            time.sleep(0.01)
        if until == "replicated":
            lost = answer.get("lost_replicas")
            if lost or answer.get("replicated") is None:
                message = (
                    f"step {self.step} has no replica: {lost or 'none were asked'}"
                )
                raise CheckpointError(message)
            time.sleep(0.01)
        if answer["state"] == "failed" and not self.durable:
            message = f"step {self.step} was not saved: {answer['error']}"
            if answer["dropped"]:
                raise CheckpointError(message)
            raise StorageError(message)
        if answer["state"] != "unknown":
            self._unknown_since = None
            return
        # Neither a daemon nor the storage knows of it: it has taken the place of one
        # that died, and has not looked yet; or the memory has been overwritten since.
        self._client.hello()
        now = time.monotonic()
        self._unknown_since = self._unknown_since or now
        if now - self._unknown_since > _LOST_S:
            message = f"step {self.step} was lost with the daemon that was to write it"
            raise StorageError(message)
        time.sleep(0.05)

    def _ask(self, timeout_s: float, client: Client | None = None) -> dict[str, Any]:
        """Returns what the daemon knows, or else the storage."""
        about = {"step": self.step, "save_id": self.save_id, "under": self._under}
        question = {"op": "wait", **about, "timeout_s": timeout_s}
        error = "the daemon was stopped"
        if not self._client.is_retired:
            try:
                # What waits has a connection of its own.
                usual = self._waiting if timeout_s else self._client
                return (client or usual).ask(question)
            except DaemonError as problem:
                error = str(problem)
        name = folder_name(self.step, self.save_id)
        is_there = self._storage.ensure_durable(name, ROOT_FILE)
        return {"state": "committed" if is_there else "unknown", "error": error}
