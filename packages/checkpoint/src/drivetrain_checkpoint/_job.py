"""A job as one of its ranks sees it: the other ranks, the daemon, and the storage."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from drivetrain_checkpoint._client import Client
from drivetrain_checkpoint._nodes import holders
from drivetrain_checkpoint._saves import list_saved, own
from drivetrain_checkpoint._storage.open import open_storage, place_of
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from drivetrain_checkpoint._settings import Settings
    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_checkpoint._team import Meeting, Team

__all__ = ["Job"]


class Job:
    """Whom a rank talks to, and where its checkpoints go.

    Args:
        settings: What the daemon is told.
        team: The ranks.
        num_replicas: How many other nodes hold each node's newest save.
        failure_domain: What fails together with this node; None is the node alone.
        replica_bytes_per_s: How fast a node sends replicas at most; None is without
            limit.

    Attributes:
        settings: What the daemon is told.
        team: The ranks.
        client: The way to this node's daemon.
        storage: Where checkpoints go.
        num_replicas: How many other nodes hold each node's newest save.

    Raises:
        StorageError: What is needed for the URL is not installed.
    """

    def __init__(
        self,
        settings: Settings,
        team: Team,
        *,
        num_replicas: int,
        failure_domain: str | None,
        replica_bytes_per_s: float | None,
    ) -> None:
        """Talks to nobody yet."""
        self.settings = settings
        self.team = team
        self.client = Client(settings)
        self.storage = open_storage(settings.url, settings.options)
        self.num_replicas = num_replicas
        self._domain = failure_domain
        self._replica_rate = replica_bytes_per_s
        self._meeting: Meeting | None = None
        self._is_enlisted = False

    def meet(self) -> Meeting:
        """Returns what the ranks know of each other; all of them ask at one time.

        Raises:
            DaemonError: A daemon cannot be started.
        """
        if self._meeting is None:
            self._meeting = self.team.meet(self.client, domain=self._domain)
        return self._meeting

    def enlist(self) -> bool:
        """Makes the nodes of the job known to the daemons, before the first save.

        Returns:
            Whether they had not been told before.

        Raises:
            ValueError: There are not as many nodes as replicas need.
            DaemonError: A daemon cannot be started.
        """
        meeting = self.meet()
        if self._is_enlisted:
            return False
        holders(meeting.nodes.nodes, self.num_replicas)
        self.client.enlist(
            {
                "nodes": meeting.nodes.to_plain(),
                "secret": meeting.secret,
                "run": meeting.run,
                "num_replicas": self.num_replicas,
                "bytes_per_s": self._replica_rate,
            }
        )
        self._is_enlisted = True
        return True

    def storage_of(self, under: str) -> Storage:
        """Returns the storage of a folder in that of the job; of that itself for ""."""
        if not under:
            return self.storage
        place = place_of(self.settings.url, under)
        return open_storage(place, self.settings.options)

    def latest(self) -> int | None:
        """Returns the step that was saved last and is on storage, or None."""
        saved = own(list_saved(self.storage), self.settings.job)
        return saved[-1].root.step if saved else None

    def saved_at_ns(self) -> list[int]:
        """Returns when the checkpoints on storage were made, of all jobs."""
        with contextlib.suppress(CheckpointError):
            return [saved.root.saved_at_ns for saved in list_saved(self.storage)]
        return []

    def stop_daemon(self, *, at_once: bool) -> None:
        """Stops the daemon of this node; the ranks meet again before the next save."""
        if self.client.is_running():
            self.client.ask({"op": "stop", "at_once": at_once})
        self.client.retire()
        self._meeting, self._is_enlisted = None, False
