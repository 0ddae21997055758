"""Persister: writes saves from the daemon's memory to storage, and commits them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint._daemon.commit_decision import decide
from drivetrain_checkpoint._daemon.pending_save import PERSIST
from drivetrain_checkpoint._errors import CorruptCheckpointError, StorageError
from drivetrain_checkpoint._layout.manifest import (
    ROOT_FILE,
    RankFile,
    RankManifest,
    RootManifest,
    rank_manifest_file,
)
from drivetrain_checkpoint._storage.catalog import (
    Keep,
    Saved,
    abandoned,
    look_again,
    retired,
    written_ranks,
)
from drivetrain_checkpoint._storage.overtaken import why_overtaken
from drivetrain_checkpoint._storage.protocol import folder_name
from drivetrain_checkpoint._storage.write_rank import write_rank
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._daemon.pending_save import PendingSave
    from drivetrain_checkpoint._daemon.save_queue import SaveQueue
    from drivetrain_checkpoint._native import Progress
    from drivetrain_checkpoint._peers.peer_client import PeerClient
    from drivetrain_checkpoint._storage.local_store import LocalStore
    from drivetrain_checkpoint._storage.protocol import Storage

logger = logging.getLogger(__name__)

_SCAN_S = 0.25
_RETRY_S = 5.0
_TICK_S = 0.02
_ASK_S = 0.5
_NUM_WRITERS = 4


class Persister:
    """Writes what ranks publish.

    Each rank has a thread that waits for its saves, and each save one that writes it:
    a storage that hangs holds that thread, and no more.

    Args:
        queue: The saves in memory.
        peers: The other nodes.
        storage: Where checkpoints go.
        open_under: Opens a folder in the storage, for saves that go there.

    Attributes:
        local: A disk of this node, for saves before they reach storage; None for none.
        keep: Which of them stay.
        limit_s: How long a storage may make no progress, and a rank keep all waiting.
    """

    def __init__(
        self,
        queue: SaveQueue,
        peers: PeerClient,
        storage: Storage,
        open_under: Callable[[str], Storage] | None = None,
    ) -> None:
        """Starts nothing yet."""
        self.local: LocalStore | None = None
        self.keep = Keep()
        self.limit_s = 600.0
        self._queue = queue
        self._peers = peers
        self._storage = storage
        self._open_under = open_under
        self._retiring = threading.Lock()
        self._looking = threading.Lock()
        self._known: dict[str, dict[str, Saved]] = {}
        self._found_first: dict[str, frozenset[str]] = {}
        self._ranks: set[int] = set()

    def serve(self, rank: int) -> None:
        """Takes care of a rank from now on."""
        if rank not in self._ranks:
            self._ranks.add(rank)
            threading.Thread(target=self._run, args=(rank,), daemon=True).start()

    def ensure_committed(self, step: int, save_id: str, under: str = "") -> bool:
        """Returns whether a save was committed, whoever did it; durably, from now on.

        Raises:
            StorageError: The storage fails.
        """
        name = folder_name(step, save_id)
        if not self._storage_of(under).ensure_durable(name, ROOT_FILE):
            return False
        self._queue.committed(save_id)
        return True

    def _run(self, rank: int) -> None:
        while True:
            pending = self._queue.begin(rank, PERSIST, _SCAN_S)
            if pending is None:
                self._queue.retry(_RETRY_S)
                continue
            worker = threading.Thread(
                target=self._counted_attempt, args=(pending,), daemon=True
            )
            try:
                worker.start()
            except RuntimeError as error:  # there are too many threads
                self._report(pending, str(error))
                continue
            self._watch(pending, worker)

    def _watch(self, pending: PendingSave, worker: threading.Thread) -> None:
        """Waits for a thread as long as it goes on."""
        before, since = -1, time.monotonic()
        while worker.is_alive():
            worker.join(0.1)
            progress = pending.running.get(PERSIST)
            if progress is None:
                return
            if progress.done != before:
                before, since = progress.done, time.monotonic()
            elif time.monotonic() - since > self.limit_s:
                message = f"the storage made no progress for {self.limit_s:g} s"
                self._report(pending, message)
                return

    def _counted_attempt(self, pending: PendingSave) -> None:
        # A thread that storage holds up may write yet: nobody tries anew beside it.
        with self._queue.attempt(pending.save_id):
            self._attempt(pending)

    def _attempt(self, pending: PendingSave) -> None:
        error, committed = "", None
        try:
            committed = self._persist(pending, pending.running[PERSIST])
        # Whatever goes wrong with one save is told to who waits for it; the daemon
        # lives on for the next.
        except Exception as problem:  # noqa: BLE001
            error = str(problem) or type(problem).__name__
        with self._queue.keep_busy():
            was_given_up = PERSIST not in pending.running
            self._report(pending, error)
            if committed is not None:
                # Two that delete one folder would stop at each other's traces.
                with self._retiring:
                    self._retire(self._storage_for(pending), committed)
            elif error and pending.rank == 0 and not was_given_up:
                self._discard(pending)

    def _report(self, pending: PendingSave, error: str) -> None:
        if error and PERSIST in pending.running:
            logger.warning("rank %d, %s: %s", pending.rank, pending.save_id, error)
            save = {"save_id": pending.save_id, "error": error}
            # The other ranks of this node need not go on either.
            self._queue.end(pending, PERSIST, error)
            self._queue.failed(**save)
            self._peers.notify_all({"op": "failed", **save})
        self._queue.end(pending, PERSIST, error)

    def _persist(self, pending: PendingSave, progress: Progress) -> RootManifest | None:
        """Writes a rank's part; returns what it committed, if it is the first rank."""
        record = pending.generation.record
        manifest = RankManifest.from_fields(
            record["manifest"], f"the memory of rank {pending.rank}"
        )
        name = folder_name(manifest.step, manifest.save_id)
        storage, under = self._storage_for(pending), record.get("under", "")
        if self.ensure_committed(manifest.step, manifest.save_id, under):
            return None  # a daemon before this one has done it
        arena, generation = pending.arena, pending.generation
        memory = arena.view(generation.image_at, manifest.size_bytes)
        # A trainer whose daemon has died may fill what that had set aside for it.
        holds = functools.partial(arena.has, generation)
        if self.local is not None:
            text = bytes(arena.view(generation.record_at, generation.record_bytes))
            self.local.keep(manifest, memory, text, _NUM_WRITERS, progress, holds)
        text = self._written_before(storage, name, manifest) or write_rank(
            storage, manifest, memory, _NUM_WRITERS, progress, holds
        )
        entry = dataclasses.asdict(RankFile.of(manifest.rank, text))
        self._queue.report(manifest.save_id, manifest.rank, entry)
        if manifest.rank != 0:
            about = {"save_id": manifest.save_id, "rank": manifest.rank, "entry": entry}
            self._peers.notify_committer({"op": "written", **about})
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
            writer=record["writer"],
            began_ns=record["began_ns"],
        )
        self._check_alone(storage, root, under)
        plain = arena.body(generation)
        self._check(progress, holds=holds())
        storage.commit(name, ROOT_FILE, root.with_plain(plain))
        self._queue.committed(manifest.save_id)
        self._peers.notify_all({"op": "committed", "save_id": manifest.save_id})
        return root

    def _check_alone(self, storage: Storage, root: RootManifest, under: str) -> None:
        """Raises if another run saves this job too, and began later.

        Raises:
            StorageError: It does.
        """
        with self._looking:
            known = self._known.setdefault(storage.url, {})
            try:
                look_again(storage, known)
            # Who may not list the storage may save to it all the same.
            except (CheckpointError, OSError) as error:
                logger.warning("whether another run saves here is not known: %s", error)
            # A run begins after all that it finds in the folder of its job. In others
            # clocks alone would say so: what lies there at first is of earlier runs.
            first = frozenset(known) if under else frozenset()
            first = self._found_first.setdefault(storage.url, first)
            others = [saved.root for name, saved in known.items() if name not in first]
        if problem := why_overtaken(root, others):
            raise StorageError(problem)

    def _storage_of(self, under: str) -> Storage:
        opens = self._open_under if under else None
        return opens(under) if opens else self._storage

    def _storage_for(self, pending: PendingSave) -> Storage:
        return self._storage_of(pending.generation.record.get("under", ""))

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
        reported_at = looked_at = asked_at = time.monotonic()
        before: set[int] = set()
        is_news = True
        while True:
            with self._queue.changed:
                result = self._queue.results.of(manifest.save_id)
                reported = {rank: RankFile(**e) for rank, e in result.reported.items()}
                error = result.error
            now = time.monotonic()
            if reported.keys() != before:
                before, reported_at, is_news = set(reported), now, True
            is_complete = len(reported) == manifest.world_size
            if now - max(reported_at, asked_at) > _ASK_S:
                missing = set(range(manifest.world_size)) - reported.keys()
                missing -= found.keys()
                absent = self._peers.absent(manifest.save_id, run, missing)
                asked_at = now
            decision = decide(
                reported=reported,
                absent=absent,
                on_storage=found,
                world_size=manifest.world_size,
                error=error,
                quiet_s=now - reported_at,
                unseen_s=math.inf if is_news and is_complete else now - looked_at,
                limit_s=self.limit_s,
            )
            if decision.action == "commit":
                return found
            if decision.action == "fail":
                raise StorageError(decision.because)
            self._check(progress)
            if decision.action == "look":
                found = written_ranks(storage, name, reported, manifest.world_size)
                looked_at, is_news = time.monotonic(), False
                continue
            progress.done += 1
            with self._queue.changed:
                self._queue.changed.wait(_TICK_S)

    def _check(self, progress: Progress, *, holds: bool = True) -> None:
        if progress.stop or not holds:
            message = "it was given up"
            raise StorageError(message)

    def _discard(self, pending: PendingSave) -> None:
        """Deletes what a save has left that failed: a full disk needs the space."""
        name = folder_name(pending.generation.record["step"], pending.save_id)
        queue, save_id = self._queue, pending.save_id
        storage = self._storage_for(pending)
        with queue.changed:
            queue.changed.wait_for(lambda: not queue.is_open(save_id), self.limit_s)
        try:
            if not storage.exists(name, ROOT_FILE):
                storage.remove(name, ROOT_FILE)
        # What is left does no harm, and is deleted when it is old.
        except (CheckpointError, OSError) as error:
            logger.warning("what is left of a save stays: %s", error)

    def _retire(self, storage: Storage, newest: RootManifest) -> None:
        """Deletes what is no longer kept; nobody waits for it."""
        try:
            name = folder_name(newest.step, newest.save_id)
            with self._looking:
                self._known[storage.url][name] = Saved(name, newest)
                known = dict(self._known[storage.url])
            saved = sorted(known.values(), key=lambda one: one.root.saved_at_ns)
            names = [s.name for s in retired(saved, newest, self.keep)]
            for old in [*names, *abandoned(storage, committed=known)]:
                storage.remove(old, ROOT_FILE)
        # Old checkpoints that stay do no harm.
        except (CheckpointError, OSError) as error:
            logger.warning("an old checkpoint stays: %s", error)
