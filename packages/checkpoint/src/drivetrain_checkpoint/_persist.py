"""Brings saves from memory to storage, and commits them, in the daemon."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint._commit import decide
from drivetrain_checkpoint._errors import CorruptCheckpointError, StorageError
from drivetrain_checkpoint._manifest import (
    ROOT_FILE,
    RankFile,
    RankManifest,
    RootManifest,
    rank_manifest_file,
    tensor_file,
)
from drivetrain_checkpoint._saves import (
    Keep,
    abandoned,
    list_saved,
    retired,
    written_ranks,
)
from drivetrain_checkpoint._storage.protocol import folder_name
from drivetrain_checkpoint._ticket import PERSIST
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._custody import Custody
    from drivetrain_checkpoint._local import LocalStore
    from drivetrain_checkpoint._native import Progress
    from drivetrain_checkpoint._neighbours import Neighbours
    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_checkpoint._ticket import Ticket

__all__ = ["Persister"]

logger = logging.getLogger(__name__)

_SCAN_S = 0.25
_TICK_S = 0.02
_ASK_S = 0.5
_NUM_WRITERS = 4


class Persister:
    """Writes what ranks publish.

    Each rank has a thread that waits for its saves, and each save one that writes it:
    a storage that hangs holds that thread, and no more.

    Args:
        custody: The memory.
        neighbours: The other nodes.
        storage: Where checkpoints go.
        open_under: Opens a folder in the storage, for saves that go there.

    Attributes:
        local: A disk of this node, for saves before they reach storage; None for none.
        keep: Which of them stay.
        limit_s: How long a storage may make no progress, and a rank keep all waiting.
    """

    def __init__(
        self,
        custody: Custody,
        neighbours: Neighbours,
        storage: Storage,
        open_under: Callable[[str], Storage] | None = None,
    ) -> None:
        """Starts nothing yet."""
        self.local: LocalStore | None = None
        self.keep = Keep()
        self.limit_s = 600.0
        self._custody = custody
        self._neighbours = neighbours
        self._storage = storage
        self._open_under = open_under
        self._retiring = threading.Lock()
        self._ranks: set[int] = set()

    def serve(self, rank: int) -> None:
        """Takes care of a rank from now on."""
        if rank not in self._ranks:
            self._ranks.add(rank)
            threading.Thread(target=self._run, args=(rank,), daemon=True).start()

    def settle(self, step: int, save_id: str, under: str = "") -> bool:
        """Returns whether a save was committed, whoever did it; durably, from now on.

        Raises:
            StorageError: The storage fails.
        """
        name = folder_name(step, save_id)
        if not self._storage_of(under).settle(name, ROOT_FILE):
            return False
        self._custody.committed(save_id)
        return True

    def _run(self, rank: int) -> None:
        while True:
            ticket = self._custody.begin(rank, PERSIST, _SCAN_S)
            if ticket is None:
                continue
            worker = threading.Thread(target=self._attempt, args=(ticket,), daemon=True)
            worker.start()
            self._watch(ticket, worker)

    def _watch(self, ticket: Ticket, worker: threading.Thread) -> None:
        """Waits for a thread as long as it goes on."""
        before, since = -1, time.monotonic()
        while worker.is_alive():
            worker.join(0.1)
            progress = ticket.running.get(PERSIST)
            if progress is None:
                return
            if progress.done != before:
                before, since = progress.done, time.monotonic()
            elif time.monotonic() - since > self.limit_s:
                message = f"the storage made no progress for {self.limit_s:g} s"
                self._report(ticket, message)
                return

    def _attempt(self, ticket: Ticket) -> None:
        error, committed = "", None
        try:
            committed = self._persist(ticket, ticket.running[PERSIST])
        # Whatever goes wrong with one save is told to who waits for it; the daemon
        # lives on for the next.
        except Exception as problem:  # noqa: BLE001
            error = str(problem) or type(problem).__name__
        with self._custody.errand():
            was_given_up = PERSIST not in ticket.running
            self._report(ticket, error)
            if committed is not None:
                # Two that delete one folder would stop at each other's traces.
                with self._retiring:
                    self._retire(self._storage_for(ticket), committed)
            elif error and ticket.rank == 0 and not was_given_up:
                self._discard(ticket)

    def _report(self, ticket: Ticket, error: str) -> None:
        if error and PERSIST in ticket.running:
            logger.warning("rank %d, %s: %s", ticket.rank, ticket.save_id, error)
            save = {"save_id": ticket.save_id, "error": error}
            # The other ranks of this node need not go on either.
            self._custody.end(ticket, PERSIST, error)
            self._custody.failed(**save)
            self._neighbours.tell_all({"op": "failed", **save})
        self._custody.end(ticket, PERSIST, error)

    def _persist(self, ticket: Ticket, progress: Progress) -> RootManifest | None:
        """Writes a rank's part; returns what it committed, if it is the first rank."""
        record = ticket.generation.record
        manifest = RankManifest.from_fields(
            record["manifest"], f"the memory of rank {ticket.rank}"
        )
        name = folder_name(manifest.step, manifest.save_id)
        storage, under = self._storage_for(ticket), record.get("under", "")
        if self.settle(manifest.step, manifest.save_id, under):
            return None  # a daemon before this one has done it
        address = ticket.arena.address + ticket.generation.image_at
        self._keep_locally(ticket, manifest, address, progress)
        text = self._written_before(storage, name, manifest)
        if text is None:
            text = self._write(storage, name, manifest, address, progress)
        entry = dataclasses.asdict(RankFile.of(manifest.rank, text))
        self._custody.told(manifest.save_id, manifest.rank, entry)
        if manifest.rank != 0:
            said = {"save_id": manifest.save_id, "rank": manifest.rank, "entry": entry}
            self._neighbours.tell_committer({"op": "written", **said})
            return None
        ranks = self._await_ranks(manifest, storage, record["run"], progress)
        self._check(progress)
        root = RootManifest(
            job=manifest.job,
            step=manifest.step,
            save_id=manifest.save_id,
            saved_at_ns=record["saved_at_ns"],
            world_size=manifest.world_size,
            entries={},
            layout={},
            ranks=tuple(ranks[rank] for rank in range(manifest.world_size)),
        )
        plain = ticket.arena.body(ticket.generation)
        storage.commit(name, ROOT_FILE, root.with_plain(plain))
        self._custody.committed(manifest.save_id)
        self._neighbours.tell_all({"op": "committed", "save_id": manifest.save_id})
        return root

    def _keep_locally(
        self, ticket: Ticket, manifest: RankManifest, address: int, progress: Progress
    ) -> None:
        """Writes a rank's part to the local disk, if there is one."""
        if self.local is None:
            return
        generation = ticket.generation
        record = ticket.arena.view(generation.record_at, generation.record_bytes)
        try:
            self.local.keep(manifest, address, bytes(record), _NUM_WRITERS, progress)
        except StorageError as error:
            # It would have been a shorter way back; the checkpoint does not need it.
            logger.warning("nothing is kept on the local disk: %s", error)

    def _storage_of(self, under: str) -> Storage:
        opens = self._open_under if under else None
        return opens(under) if opens else self._storage

    def _storage_for(self, ticket: Ticket) -> Storage:
        return self._storage_of(ticket.generation.record.get("under", ""))

    def _written_before(
        self, storage: Storage, name: str, manifest: RankManifest
    ) -> bytes | None:
        """Returns the manifest of a part that a daemon before this one has written.

        It must not be written again: a commit may vouch for it already.
        """
        file = rank_manifest_file(manifest.rank)
        try:
            text = storage.read(name, file)
            found = RankManifest.from_bytes(text, file)
        except (FileNotFoundError, CorruptCheckpointError):
            return None
        is_same = dataclasses.replace(found, crc32c=()) == manifest
        return text if is_same else None

    def _write(
        self,
        storage: Storage,
        name: str,
        manifest: RankManifest,
        address: int,
        progress: Progress,
    ) -> bytes:
        """Writes a rank's tensors, then its manifest, which it returns."""
        file, size = tensor_file(manifest.rank), manifest.size_bytes
        sums = storage.write(name, file, address, size, _NUM_WRITERS, progress)
        self._check(progress)
        text = dataclasses.replace(manifest, crc32c=tuple(sums)).to_bytes()
        storage.write_small(name, rank_manifest_file(manifest.rank), text)
        return text

    def _await_ranks(
        self, manifest: RankManifest, storage: Storage, run: str, progress: Progress
    ) -> dict[int, RankFile]:
        """Waits until every rank's part is on storage.

        Raises:
            StorageError: A rank has failed, or is waited for in vain.
        """
        name = folder_name(manifest.step, manifest.save_id)
        found: dict[int, RankFile] = {}
        absent: set[int] = set()
        said_at = looked_at = asked_at = time.monotonic()
        said: set[int] = set()
        is_news = True
        while True:
            with self._custody.changed:
                outcome = self._custody.outcomes.of(manifest.save_id)
                told = {rank: RankFile(**e) for rank, e in outcome.told.items()}
                error = outcome.error
            now = time.monotonic()
            if told.keys() != said:
                said, said_at, is_news = set(told), now, True
            is_complete = len(told) == manifest.world_size
            if now - max(said_at, asked_at) > _ASK_S:
                missing = set(range(manifest.world_size)) - told.keys() - found.keys()
                absent = self._neighbours.absent(manifest.save_id, run, missing)
                asked_at = now
            decision = decide(
                told=told,
                absent=absent,
                on_storage=found,
                world_size=manifest.world_size,
                error=error,
                quiet_s=now - said_at,
                unseen_s=math.inf if is_news and is_complete else now - looked_at,
                limit_s=self.limit_s,
            )
            if decision.action == "commit":
                return found
            if decision.action == "fail":
                raise StorageError(decision.because)
            self._check(progress)
            if decision.action == "look":
                found = written_ranks(storage, name, told, manifest.world_size)
                looked_at, is_news = time.monotonic(), False
                continue
            progress.done += 1
            with self._custody.changed:
                self._custody.changed.wait(_TICK_S)

    def _check(self, progress: Progress) -> None:
        if progress.stop:
            message = "it was given up"
            raise StorageError(message)

    def _discard(self, ticket: Ticket) -> None:
        """Deletes what a save has left that failed: a full disk needs the space."""
        name = folder_name(ticket.generation.record["step"], ticket.save_id)
        custody, save_id = self._custody, ticket.save_id
        storage = self._storage_for(ticket)
        with custody.changed:
            custody.changed.wait_for(lambda: not custody.is_open(save_id), self.limit_s)
        try:
            if not storage.exists(name, ROOT_FILE):
                storage.remove(name, ROOT_FILE)
        # What is left does no harm, and is deleted when it is old.
        except (CheckpointError, OSError) as error:
            logger.warning("what is left of a save stays: %s", error)

    def _retire(self, storage: Storage, newest: RootManifest) -> None:
        """Deletes what is no longer kept; nobody waits for it."""
        try:
            saved = list_saved(storage)
            names = [s.name for s in retired(saved, newest, self.keep)]
            for name in [*names, *abandoned(storage)]:
                storage.remove(name, ROOT_FILE)
        # Old checkpoints that stay do no harm.
        except (CheckpointError, OSError) as error:
            logger.warning("an old checkpoint stays: %s", error)
