"""Job context: the rank group, the daemon and the storage that a rank saves with."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivetrain_checkpoint._daemon.client import Client
from drivetrain_checkpoint._peers.nodes import replica_holders
from drivetrain_checkpoint._storage.catalog import (
    checkpoints_of_job,
    list_saved,
    newest,
    scan,
)
from drivetrain_checkpoint._storage.open import child_url, open_storage
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from drivetrain_checkpoint._daemon.settings import Settings
    from drivetrain_checkpoint._rank_group import RankGroup, Rendezvous
    from drivetrain_checkpoint._storage.protocol import Storage


@dataclass(kw_only=True, slots=True)
class JobContext:
    """What a rank needs to save and restore a job.

    Args:
        settings: What the daemon is told.
        group: The ranks.
        num_replicas: How many other nodes hold each node's newest save.
        failure_domain: What fails together with this node; None is the node alone.
        replica_bytes_per_s: How fast a node sends replicas at most; None is without
            limit.
        adopt: Whether a job that has no checkpoint goes on from another job's.

    Attributes:
        client: The way to this node's daemon.
        storage: Where checkpoints go.

    Raises:
        StorageError: What is needed for the URL is not installed.
    """

    settings: Settings
    group: RankGroup
    num_replicas: int
    failure_domain: str | None
    replica_bytes_per_s: float | None
    adopt: bool = False
    client: Client = field(init=False)
    storage: Storage = field(init=False)
    _rendezvous: Rendezvous | None = field(init=False, default=None)
    _is_registered: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Talks to nobody yet."""
        self.client = Client(self.settings)
        self.storage = open_storage(self.settings.url, self.settings.options)

    def rendezvous(self) -> Rendezvous:
        """Returns what the ranks know of each other; all of them ask at one time.

        Raises:
            DaemonError: A daemon cannot be started.
        """
        if self._rendezvous is None:
            self._rendezvous = self.group.rendezvous(
                self.client, domain=self.failure_domain
            )
        return self._rendezvous

    def register_nodes(self) -> bool:
        """Makes the nodes of the job known to the daemons, before the first save.

        Returns:
            Whether they had not been told before.

        Raises:
            ValueError: There are not as many nodes as replicas need, or ranks were told
                to keep different checkpoints.
            DaemonError: A daemon cannot be started.
        """
        rendezvous = self.rendezvous()
        if self._is_registered:
            return False
        for rank, keep in enumerate(kept := self.group.all_gather(self.settings.keep)):
            if keep != kept[0]:
                message = (
                    f"rank 0 saves with {kept[0]}, and rank {rank} with {keep}: give all "
                    "ranks the same keep"
                )
                raise ValueError(message)
        replica_holders(rendezvous.nodes.nodes, self.num_replicas)
        about = {
            "nodes": rendezvous.nodes.to_plain(),
            "secret": rendezvous.secret,
            "run": rendezvous.run,
            "num_replicas": self.num_replicas,
            "bytes_per_s": self.replica_bytes_per_s,
        }
        self.group.run_on_all(lambda: self.client.join(about))
        self._is_registered = True
        return True

    def storage_of(self, under: str) -> Storage:
        """Returns the storage of a folder in that of the job; of that itself for ""."""
        if not under:
            return self.storage
        place = child_url(self.settings.url, under)
        return open_storage(place, self.settings.options)

    def latest(self) -> int | None:
        """Returns the step to go on from, of those on storage, or None."""
        saved, damaged = scan(self.storage)
        job = self.settings.job
        mine = checkpoints_of_job(saved, job, adopt=self.adopt)
        chosen = newest(mine, [one for one in damaged if one.job == job])
        return chosen.save.step if chosen.save else None

    def saved_at_ns(self) -> list[int]:
        """Returns when the checkpoints on storage were made, of all jobs."""
        with contextlib.suppress(CheckpointError):
            return [saved.root.saved_at_ns for saved in list_saved(self.storage)]
        return []

    def stop_daemon(self, *, at_once: bool) -> None:
        """Stops the daemon of this node; a rendezvous precedes the next save."""
        if self.client.is_running():
            self.client.ask({"op": "stop", "at_once": at_once})
        self.client.retire()
        self._rendezvous, self._is_registered = None, False
