"""Service of the daemon: its answers to the trainers of its node and to its peers."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._arguments import amount
from drivetrain_checkpoint._daemon.held_saves import held_saves, send_part, status_of
from drivetrain_checkpoint._daemon.messages import check_message
from drivetrain_checkpoint._daemon.pending_save import PERSIST
from drivetrain_checkpoint._daemon.persister import Persister
from drivetrain_checkpoint._daemon.replicator import RateLimiter, Replicator
from drivetrain_checkpoint._daemon.save_queue import SaveQueue
from drivetrain_checkpoint._daemon.trainer_registry import TrainerRegistry
from drivetrain_checkpoint._peers.nodes import NodeTable
from drivetrain_checkpoint._peers.peer_client import PeerClient
from drivetrain_checkpoint._peers.peer_server import PeerServer
from drivetrain_checkpoint._peers.replica_store import ReplicaStore
from drivetrain_checkpoint._peers.strangers import Strangers
from drivetrain_checkpoint._storage.catalog import Keep
from drivetrain_checkpoint._storage.local_store import LocalStore
from drivetrain_checkpoint._storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from drivetrain_checkpoint._daemon.listener import Listener
    from drivetrain_checkpoint._peers.connection import Connection

logger = logging.getLogger(__name__)

_EMPTY_S = 60.0
"""How long a daemon without memory waits for somebody."""

_STRANGER_BYTES = 64 << 10
"""How long the first message of a connection may be: options of a storage are."""

_MOST_LETTERS = 4000  # of a refusal
_LEAVE_S = 30.0
_AGAIN_S = 0.5


class Daemon:
    """Answers trainers and other daemons.

    Thread-safe: each connection has a thread.

    Args:
        listener: Where trainers find it.
    """

    def __init__(self, listener: Listener) -> None:
        """Knows of no job yet; the first trainer tells."""
        self._listener = listener
        self.stopped = threading.Event()
        self._id = secrets.token_hex(8)
        self._idle_s = 60.0  # until somebody says how long
        self._url = ""
        self._queue = SaveQueue()
        self._peers = PeerClient()
        self._replicas = ReplicaStore()
        self._replicator = Replicator(self._queue, self._peers)
        self._persister: Persister | None = None
        self._server: PeerServer | None = None
        self._peers.absent_here = self._absent
        self._trainers = TrainerRegistry()
        self._connections: set[Connection] = set()
        self._strangers = Strangers(_STRANGER_BYTES)
        self._lock = threading.Lock()
        self._leaving = threading.Lock()
        self._is_leaving = False

    def serve(self) -> None:
        """Talks to whoever connects, until it is stopped or has long been left alone."""
        left_at = time.monotonic()
        while not self.stopped.is_set():
            try:
                sock = self._listener.accept()
            except TimeoutError:
                self._strangers.expire()
                self._tidy()
                # In this order: who stops it says so before the socket goes.
                if self._listener.is_hidden() and not self.stopped.is_set():
                    self._listener.renew()
                has_memory = self._queue.arenas or self._replicas.all()
                idle_s = self._idle_s if has_memory else min(self._idle_s, _EMPTY_S)
                if self._connections or not self._queue.is_idle():
                    left_at = time.monotonic()
                elif time.monotonic() - left_at > idle_s:
                    logger.info("nobody has come for %g s: ending", self._idle_s)
                    return
                continue
            except OSError:  # it was stopped, or too many files are open
                self.stopped.wait(_AGAIN_S)
                continue
            self._strangers.welcome(sock, "this node", self._talk)

    def leave(self) -> None:
        """Ends when all that lies in memory is on storage; at once if asked again.

        Safe in a signal handler.
        """
        if self._is_leaving:
            self.stop()
            return
        self._is_leaving = True
        threading.Thread(target=self._finish, daemon=True).start()

    def _finish(self) -> None:
        deadline = time.monotonic() + _LEAVE_S
        self._queue.add_task(PERSIST)
        self._await_idle()
        self._settle(deadline)
        with contextlib.suppress(OSError):
            self._listener.hide()
        self.stop()

    def _settle(self, deadline: float) -> bool:
        """Brings what is in memory to storage; a storage that is away may come back."""
        while True:
            self._queue.add_task(PERSIST)
            left = deadline - time.monotonic()
            if self._queue.wait_until_idle(max(0.0, left)):
                return True
            if left <= 0:
                return False
            time.sleep(min(_AGAIN_S, left))

    def _await_idle(self) -> None:
        """Waits until nothing is left to be done, for trainers that have gone too."""
        # Threads that talked to trainers may notice later that those are gone.
        with self._leaving:
            self._persist_left(self._trainers.gone_ranks())
        with self._queue.changed:
            self._queue.changed.wait_for(self._queue.is_idle)

    def stop(self) -> None:
        """Lets nobody in any more, which ends `serve`; safe in a signal handler."""
        self.stopped.set()
        self._listener.close()
        if self._server is not None:
            self._server.close()

    def _talk(self, connection: Connection) -> None:
        try:
            while True:
                message, fd = connection.receive()
                try:
                    self._answer(connection, message, fd, self._for_trainers)
                finally:
                    if fd is not None:
                        os.close(fd)
        finally:
            self._leave(connection)
            self._connections.discard(connection)

    def _talk_to_peer(self, connection: Connection) -> None:
        while True:
            message, _ = connection.receive()
            self._answer(connection, message, None, self._for_peers)

    def _answer(
        self,
        connection: Connection,
        message: dict[str, Any],
        fd: int | None,
        operations: Callable[..., dict[str, Any] | None],
    ) -> None:
        try:
            check_message(message)
            if operations == self._for_trainers:
                self._strangers.admit(connection)
                self._connections.add(connection)
            answer = operations(connection, fd, **message)
        # Whatever a message leads to is told to its sender: the others are served on.
        except Exception as error:  # noqa: BLE001
            # As text: what the error has seen, such as a descriptor, lives as long as it.
            text = str(error.args[0] if isinstance(error, KeyError) else error)
            answer = {"refused": text[:_MOST_LETTERS] or type(error).__name__}
        if answer is not None:
            connection.send(answer)

    def _for_trainers(
        self, connection: Connection, fd: int | None, *, op: str, **about: Any
    ) -> dict[str, Any] | None:
        queue = self._queue
        match op:
            case "hello":
                return self._configure(**about)
            case "listen":
                return self._listen(**about)
            case "join":
                return self._join(**about)
            case "arm":
                arena = _arena_of(fd)
                self._trainers.register(connection, about["rank"], self._url)
                queue.release(about["rank"])  # what came before has ended
                queue.set_arena(about["rank"], arena)
                self._look_after(about["rank"])
            case "lend":
                queue.set_arena(about["rank"], _arena_of(fd))
                self._look_after(about["rank"])
            case "adopt":
                self._trainers.register(connection, about["rank"], self._url)
                queue.release(about["rank"])
                arena_there = queue.arenas.get(about["rank"])
                if arena_there is None:
                    return {"none": True}
                connection.send({"ok": True}, arena_there.fd)
                return None
            case "attach":
                found = held_saves(queue, self._replicas)
                arenas = {id(h.arena): (h.rank, h.arena) for h in found}
                connection.send({"count": len(arenas)})
                for rank, arena in arenas.values():
                    connection.send({"rank": rank}, arena.fd)
                return None
            case "claim":
                self._trainers.check(connection, about["rank"])
                saves = self._trainers.saves
                is_wanted = functools.partial(saves, connection, about["rank"])
                return queue.claim(**about, is_wanted=is_wanted)
            case "release":
                queue.release(**about)
            case "drop":
                queue.drop(**about)
            case "saved":
                # The trainer does not wait until it has been looked at.
                connection.send({"ok": True})
                queue.published(**about)
                return None
            case "persist":
                queue.add_task(PERSIST)
            case "wait":
                return self._wait(**about)
            case "settle":
                deadline = time.monotonic() + about["timeout_s"]
                return {"durable": self._settle(deadline)}
            case "status":
                return status_of(queue, self._replicas, self._url)
            case "stop":
                self._stop(connection, **about)
                return None
            case other:
                return {"refused": f"there is no operation {other!r}"}
        return {"ok": True}

    def _for_peers(
        self, connection: Connection, _fd: int | None, *, op: str, **about: Any
    ) -> dict[str, Any] | None:
        queue = self._queue
        match op:
            case "written":
                queue.report(**about)
            case "failed":
                queue.failed(**about)
            case "committed":
                queue.committed(**about)
            case "replica":
                self._replicas.receive(connection, about)
            case "absent":
                ranks = self._absent(
                    about["save_id"], about["run"], set(about["ranks"])
                )
                return {"absent": sorted(ranks)}
            case "fetch":
                local = self._persister.local if self._persister else None
                send_part(connection, queue, self._replicas, local, **about)
                return None
            case other:
                return {"refused": f"there is no operation {other!r}"}
        return {"ok": True}

    def _configure(
        self, *, url: str, options: dict[str, Any], settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Learns where checkpoints go, from whoever comes first."""
        with self._lock:
            if self._persister is None:
                persister = Persister(
                    self._queue,
                    self._peers,
                    open_storage(url, options),
                    lambda under: open_storage(url, options, under),
                )
                self._adjust(persister, settings)
                self._url, self._persister = url, persister
        return {"id": self._id, "pid": os.getpid()}

    def _adjust(self, persister: Persister, settings: Mapping[str, Any]) -> None:
        """Takes over all settings, or none if one is odd."""
        keep, local = Keep(**settings["keep"]), settings["local"]
        limit_s, idle_s = (amount(at, settings[at]) for at in ("limit_s", "idle_s"))
        persister.local = LocalStore(*local) if local else None
        persister.keep, persister.limit_s, self._idle_s = keep, limit_s, idle_s

    def _known_persister(self) -> Persister:
        if self._persister is None:
            message = "the daemon has not been told where checkpoints go"
            raise ValueError(message)
        return self._persister

    def _listen(self, *, host: str, secret: str, port: int = 0) -> dict[str, Any]:
        """Lets those in who know a secret, beside those who know another."""
        with self._lock:
            if self._server is None or self._server.host != host:
                self._server = PeerServer(host, port, self._talk_to_peer)
            self._server.admit(secret)
            return {"port": self._server.port}

    def _join(
        self,
        *,
        nodes: dict[str, Any],
        secret: str,
        run: str,
        num_replicas: int,
        bytes_per_s: float | None,
        settings: dict[str, Any],
    ) -> dict[str, Any]:
        """Learns who saves the job, and on which nodes."""
        table = NodeTable.from_plain(nodes)
        me = next(node for node in table.nodes if node.id == table.here)
        if me.port:
            self._listen(host=me.host, secret=secret, port=me.port)
        with self._lock:
            # A daemon that takes the place of one that died is called as that was.
            self._adjust(self._known_persister(), settings)
            self._id = table.here
            if self._trainers.begin(run, me.ranks):
                self._replicator.rate = RateLimiter(bytes_per_s)
            self._replicator.num_replicas = num_replicas
        self._peers.join(table, secret)
        return {"ok": True}

    def _leave(self, connection: Connection) -> None:
        """Notices that a trainer has gone; what it left only in memory is persisted."""
        with self._leaving:
            self._persist_left(self._trainers.unregister(connection))

    def _persist_left(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._queue.release(rank)
            self._queue.add_task(PERSIST, rank)

    def _absent(self, save_id: str, run: str, ranks: set[int]) -> set[int]:
        """Returns the ranks of this node whose part of a save will never come.

        Those are the ranks that have taken its memory for another one; and of those that
        hold nothing of it the ones whose trainer is gone, or is that of another run, and
        those that the job no longer has on any node.
        """
        table = self._peers.nodes
        placed = {r for node in table.nodes for r in node.ranks} if table else ranks
        gone = self._trainers.ended_ranks(run) | (ranks - placed)
        may_come = {rank: self._queue.ask_for(rank, save_id) for rank in ranks}
        return {
            rank
            for rank, may in may_come.items()
            if may is False or (may is None and rank in gone)
        }

    def _look_after(self, rank: int) -> None:
        self._known_persister().serve(rank)
        self._replicator.serve(rank)

    def _tidy(self) -> None:
        """Gives up memory of ranks and nodes that the job no longer has."""
        ranks_here = self._trainers.ranks_here
        if ranks_here is None:
            return
        saves = [
            (save.rank, save.generation.record["saved_at_ns"], save.save_id)
            for save in self._queue.pending_saves()
        ]
        is_committed = self._queue.results.is_committed
        ours = [at for rank, at, i in saves if rank in ranks_here and is_committed(i)]
        newest = max(ours, default=0)
        self._queue.drop_arenas(
            {rank for rank, at, _ in saves if rank not in ranks_here and at < newest}
        )
        if ours and self._replicas.all():
            self._replicas.retain(self._replicator.sources())

    def _wait(self, *, timeout_s: float, **about: Any) -> dict[str, Any]:
        """Returns what became of a save."""
        save_id = about["save_id"]
        answer = self._queue.wait(save_id, timeout_s)
        is_open = answer["state"] in {"unknown", "written"}
        # What this daemon commits itself it knows; what another has committed, before
        # this one or elsewhere, is on storage.
        if not is_open or self._queue.has(0, save_id) or not self._persister:
            return answer
        # Who only looks need not ask other nodes.
        run = self._trainers.run
        is_lost = timeout_s and 0 in self._peers.absent(save_id, run, {0})
        if self._persister.ensure_committed(**about):
            return {**answer, "state": "committed"}
        return {**answer, "state": "unknown"} if is_lost else answer

    def _stop(self, connection: Connection, *, at_once: bool = False) -> None:
        if not at_once:
            self._await_idle()
        # The process may end before a later answer is sent; who has it finds nobody.
        with contextlib.suppress(OSError):
            self._listener.hide()
            connection.send({"ok": True})
        self.stop()


def _arena_of(fd: int | None) -> Arena:
    """Returns the memory behind a descriptor, which stays the caller's."""
    if fd is None:
        message = "no memory came with the message"
        raise ValueError(message)
    return Arena(os.dup(fd))
