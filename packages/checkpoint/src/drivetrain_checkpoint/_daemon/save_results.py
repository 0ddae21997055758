"""Results of saves, as the daemon knows them: committed, failed, dropped, or open."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from drivetrain_checkpoint._daemon.pending_save import PERSIST, REPLICATE

_KEPT = 256
_DROPPED = "dropped for a newer save"


@dataclass(slots=True)
class SaveResult:
    """What became of a save.

    Args:
        error: Why it failed, if it did.
        committed: Whether it is a checkpoint now.
        lost_replicas: Why a replica of it was not made, if one was not.
        failed_at: When it failed, as `time.monotonic()` counts.
        attempts: How many threads of this node write it, or delete what it has left.
        open_tasks: The ranks of this node that have a task before them, by task.
        reported: What is known of each rank's manifest, where this node commits.
    """

    error: str = ""
    committed: bool = False
    lost_replicas: str = ""
    failed_at: float = 0.0
    attempts: int = 0
    open_tasks: dict[str, set[int]] = field(default_factory=dict)
    reported: dict[int, dict[str, Any]] = field(default_factory=dict)

    def fail(self, error: str) -> None:
        """Takes note of why it failed, unless it had failed before."""
        if error and not self.error:
            self.error, self.failed_at = error, time.monotonic()

    def retry(self) -> bool:
        """Takes note that it is tried anew, if it may be; returns whether it may."""
        if self.error == _DROPPED or self.attempts:
            return False
        # What was written is deleted when a save fails.
        self.error, self.reported = "", {}
        return True

    def drop(self) -> None:
        """Takes note that it was given up for a newer save."""
        self.fail(_DROPPED)


class SaveResults:
    """The newest results, by the id of the save.

    Not thread-safe: whoever shares them has the lock.
    """

    def __init__(self) -> None:
        """Knows of no save yet."""
        self._found: dict[str, SaveResult] = {}

    def of(self, save_id: str) -> SaveResult:
        """Returns the result of a save, which is open if it was not known before."""
        found = self._found.get(save_id)
        if found is None:
            found = self._found[save_id] = SaveResult()
            for old in list(self._found)[:-_KEPT]:
                if not self._found[old].open_tasks:
                    del self._found[old]
        return found

    def is_committed(self, save_id: str) -> bool:
        """Returns whether a save is a checkpoint, as far as is known here."""
        found = self._found.get(save_id)
        return found is not None and found.committed

    def state(self, save_id: str) -> dict[str, Any]:
        """Returns what is said of a save to those who wait for it."""
        result = self._found.get(save_id)
        if result is None:
            return {"state": "unknown"}
        replicas = result.open_tasks.get(REPLICATE)
        more: dict[str, Any] = {
            # None: nobody asked for replicas, or they are not known of here.
            "replicated": None if replicas is None else not replicas,
            "lost_replicas": result.lost_replicas,
        }
        if result.committed:
            return {"state": "committed", **more}
        if result.error:
            more["dropped"] = result.error == _DROPPED
            return {"state": "failed", "error": result.error, **more}
        if result.open_tasks.get(PERSIST):
            return {"state": "pending", **more}
        wanted = any(result.reported.values()) or PERSIST in result.open_tasks
        return {"state": "written" if wanted else "staged", **more}

    def are_failures_over(self) -> bool:
        """Returns whether no thread is still busy with a save that has failed."""
        return not any(one.error and one.attempts for one in self._found.values())

    def failures(self) -> dict[str, str]:
        """Returns why saves have failed, by their id."""
        known = list(self._found.items())
        return {save_id: result.error for save_id, result in known if result.error}
