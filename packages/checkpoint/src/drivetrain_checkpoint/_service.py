"""What a daemon answers: to the trainers of its node, and to the daemons of others."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._custody import PERSIST, Custody
from drivetrain_checkpoint._local import LocalStore
from drivetrain_checkpoint._memory import held, send_part
from drivetrain_checkpoint._neighbours import Neighbours
from drivetrain_checkpoint._nodes import Nodes
from drivetrain_checkpoint._peers import PeerServer
from drivetrain_checkpoint._persist import Persister
from drivetrain_checkpoint._replicate import Bucket, ReplicaStore, Replicator
from drivetrain_checkpoint._saves import Keep
from drivetrain_checkpoint._storage.open import open_storage, place_of
from drivetrain_checkpoint._wire import Connection, address_of, own_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Daemon", "listen_at"]

logger = logging.getLogger(__name__)

_TICK_S = 0.2
_TAKE_OVER_S = 3.0
_EMPTY_S = 60.0
"""How long a daemon without memory waits for somebody."""
_CREDENTIALS = struct.Struct("3i")


class Daemon:
    """Answers trainers and other daemons.

    Thread-safe: each connection has a thread.

    Args:
        path: Where it listens.
    """

    def __init__(self, path: Path) -> None:
        """Knows of no job yet; the first trainer tells."""
        self._path = path
        self.stopped = threading.Event()
        self._id = secrets.token_hex(8)
        self._idle_s = 60.0  # until somebody says how long
        self._url = ""
        self._custody = Custody()
        self._neighbours = Neighbours()
        self._replicas = ReplicaStore()
        self._replicator = Replicator(self._custody, self._neighbours)
        self._listener: socket.socket | None = None
        self._is_deaf = False
        self._persister: Persister | None = None
        self._server: PeerServer | None = None
        self._neighbours.absent_here = self._absent
        self._ranks_here: set[int] | None = None
        self._run = ""
        self._ended: set[int] = set()
        self._owners: dict[int, Connection] = {}
        self._connections: set[Connection] = set()
        self._lock = threading.Condition()

    def serve(self, listener: socket.socket) -> None:
        """Talks to whoever connects, until it is stopped or has long been left alone."""
        listener.settimeout(_TICK_S)
        self._listener = listener
        left_at = time.monotonic()
        while not self.stopped.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                self._tidy()
                listener = self._listening(listener)
                has_memory = self._custody.arenas or self._replicas.all()
                idle_s = self._idle_s if has_memory else min(self._idle_s, _EMPTY_S)
                if self._connections or not self._custody.is_idle():
                    left_at = time.monotonic()
                elif time.monotonic() - left_at > idle_s:
                    logger.info("nobody has come for %g s: ending", self._idle_s)
                    return
                continue
            except OSError:
                return  # it was stopped
            sock.settimeout(None)
            connection = Connection(sock)
            self._connections.add(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _listening(self, listener: socket.socket) -> socket.socket:
        """Returns the listener, a new one if somebody has deleted its socket."""
        if self._path.exists() or self.stopped.is_set():
            return listener
        try:
            fresh = listen_at(self._path)
        except OSError as error:
            # The memory must outlive this; the next tick tries again.
            if not self._is_deaf:
                logger.warning("cannot listen at %s again: %s", self._path, error)
            self._is_deaf = True
            return listener
        self._is_deaf = False
        fresh.settimeout(_TICK_S)
        listener.close()
        self._listener = fresh
        return fresh

    def stop(self) -> None:
        """Lets nobody in any more, which ends `serve`; safe in a signal handler."""
        self.stopped.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._listener.shutdown(socket.SHUT_RDWR)

    def _talk(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError), contextlib.closing(connection):
            while True:
                message, fd = connection.receive()
                self._answer(connection, message, fd, self._for_trainers)
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
            answer = operations(connection, fd, **message)
        except (OSError, ValueError, KeyError, RuntimeError, MemoryError) as error:
            text = error.args[0] if isinstance(error, KeyError) else error
            answer = {"refused": f"{text}"}
        if answer is not None:
            connection.send(answer)

    def _for_trainers(
        self, connection: Connection, fd: int | None, *, op: str, **about: Any
    ) -> dict[str, Any] | None:
        custody = self._custody
        match op:
            case "hello":
                return self._configure(**about)
            case "listen":
                return self._listen(**about)
            case "join":
                return self._join(**about)
            case "arm":
                assert fd is not None
                arena = Arena(fd)
                self._own(connection, **about)
                custody.take_over(about["rank"], arena)
                self._look_after(about["rank"])
            case "adopt":
                self._own(connection, **about)
                arena_there = custody.arenas.get(about["rank"])
                if arena_there is None:
                    return {"none": True}
                connection.send({"ok": True}, arena_there.fd)
                return None
            case "attach":
                found = list(held(custody, self._replicas))
                arenas = {id(h.arena): (h.rank, h.arena) for h in found}
                connection.send({"count": len(arenas)})
                for rank, arena in arenas.values():
                    connection.send({"rank": rank}, arena.fd)
                return None
            case "claim":
                self._check_owner(connection, about["rank"])
                return custody.claim(**about)
            case "release":
                custody.release(**about)
            case "drop":
                custody.drop(**about)
            case "saved":
                # The trainer does not wait until it has been looked at.
                connection.send({"ok": True})
                custody.published(**about)
                return None
            case "persist":
                custody.ask_for(PERSIST)
            case "wait":
                return self._wait(**about)
            case "settle":
                custody.ask_for(PERSIST)
                return {"durable": custody.settle(**about)}
            case "status":
                return self._status()
            case "stop":
                self._stop(connection, **about)
                return None
            case other:
                return {"refused": f"there is no operation {other!r}"}
        return {"ok": True}

    def _for_peers(
        self, connection: Connection, _fd: int | None, *, op: str, **about: Any
    ) -> dict[str, Any] | None:
        custody = self._custody
        match op:
            case "written":
                custody.told(**about)
            case "failed":
                custody.failed(**about)
            case "committed":
                custody.committed(**about)
            case "replica":
                self._replicas.receive(connection, about)
            case "absent":
                ranks = self._absent(
                    about["save_id"], about["run"], set(about["ranks"])
                )
                return {"absent": sorted(ranks)}
            case "fetch":
                local = self._persister.local if self._persister else None
                send_part(connection, custody, self._replicas, local, **about)
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
                self._url = url
                self._persister = Persister(
                    self._custody,
                    self._neighbours,
                    open_storage(url, options),
                    lambda under: open_storage(place_of(url, under), options),
                )
                self._adjust(settings)
        return {"id": self._id, "pid": os.getpid()}

    def _adjust(self, settings: dict[str, Any]) -> None:
        assert self._persister is not None
        self._idle_s = settings["idle_s"]
        self._persister.keep = Keep(**settings["keep"])
        self._persister.limit_s = settings["limit_s"]
        local = settings["local"]
        self._persister.local = LocalStore(*local) if local else None

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
        table = Nodes.from_plain(nodes)
        me = next(node for node in table.nodes if node.id == table.here)
        if me.port:
            self._listen(host=me.host, secret=secret, port=me.port)
        with self._lock:
            # A daemon that takes the place of one that died is called as that was.
            self._id = table.here
            self._adjust(settings)
            self._ranks_here = set(me.ranks)
            if run != self._run:
                self._run, self._ended = run, set()
                self._replicator.bucket = Bucket(bytes_per_s)
            self._replicator.num_replicas = num_replicas
        self._neighbours.join(table, secret)
        return {"ok": True}

    def _own(self, connection: Connection, *, rank: int) -> None:
        """Makes a trainer the one that saves a rank.

        Raises:
            ValueError: Another process does.
        """
        with self._lock:
            deadline = time.monotonic() + _TAKE_OVER_S
            while (owner := self._owners.get(rank)) is not None:
                theirs, ours = _pid_of(owner), _pid_of(connection)
                if theirs == ours or not _is_alive(theirs):
                    break
                # A trainer that was killed is noticed soon.
                if not self._lock.wait(max(0.0, deadline - time.monotonic())):
                    message = (
                        f"process {theirs} saves rank {rank} of this job to "
                        f"{self._url}: two jobs of one name at a time. Give one of "
                        "them another name (job=...)"
                    )
                    raise ValueError(message)
            self._owners[rank] = connection
            self._ended.discard(rank)

    def _check_owner(self, connection: Connection, rank: int) -> None:
        with self._lock:
            owner = self._owners.get(rank)
        if owner is not None and owner is not connection:
            message = (
                f"another Checkpointer of process {_pid_of(owner)} has taken this job "
                "over; use one for each job"
            )
            raise ValueError(message)

    def _leave(self, connection: Connection) -> None:
        """Notices that a trainer has gone; what it left only in memory is persisted."""
        with self._lock:
            mine = [r for r, owner in self._owners.items() if owner is connection]
            for rank in mine:
                del self._owners[rank]
                self._ended.add(rank)
            self._lock.notify_all()
        for rank in mine:
            self._custody.release(rank)
            self._custody.ask_for(PERSIST, rank)

    def _absent(self, save_id: str, run: str, ranks: set[int]) -> set[int]:
        """Returns the ranks of this node that will never publish a save.

        Those are the ranks whose trainer is gone, or is that of another run.
        """
        with self._lock:
            here = self._ranks_here or set()
            gone = here if run != self._run else here & self._ended
        mine = ranks & gone
        return {rank for rank in mine if not self._custody.has(rank, save_id)}

    def _look_after(self, rank: int) -> None:
        if self._persister is None:
            message = "the daemon has not been told where checkpoints go"
            raise ValueError(message)
        self._persister.serve(rank)
        self._replicator.serve(rank)

    def _tidy(self) -> None:
        """Gives up memory of ranks and nodes that the job no longer has."""
        if self._ranks_here is None:
            return
        tickets = self._custody.tickets()
        ours = [
            t.generation.record["saved_at_ns"]
            for t in tickets
            if t.rank in self._ranks_here
            and self._custody.outcomes[t.save_id].committed
        ]
        old = {t.rank for t in tickets if t.rank not in self._ranks_here}
        strangers = {
            t.rank
            for t in tickets
            if t.rank in old
            and t.generation.record["saved_at_ns"] < max(ours, default=0)
        }
        if strangers:
            self._custody.give_up(strangers)
        if ours and self._replicas.all():
            self._replicas.retain(self._replicator.sources())

    def _wait(self, *, timeout_s: float, **about: Any) -> dict[str, Any]:
        """Returns what became of a save."""
        save_id = about["save_id"]
        answer = self._custody.wait(save_id, timeout_s)
        is_open = answer["state"] in {"unknown", "written"}
        # What this daemon commits itself it knows; what another has committed, before
        # this one or elsewhere, is on storage.
        may_be_there = is_open and not self._custody.has(0, save_id)
        if may_be_there and self._persister and self._persister.settle(**about):
            return {**answer, "state": "committed"}
        return answer

    def _stop(self, connection: Connection, *, at_once: bool = False) -> None:
        if not at_once:
            with self._custody.changed:
                self._custody.changed.wait_for(self._custody.is_idle)
        # The process may end before a later answer is sent; who has it finds nobody.
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
            connection.send({"ok": True})
        self.stop()

    def _status(self) -> dict[str, Any]:
        ranks: dict[str, Any] = {}
        for found in held(self._custody, self._replicas):
            kind = "replicas" if found.is_replica else "ranks"
            rank = ranks.setdefault(kind, {}).setdefault(
                str(found.rank),
                {"memory_bytes": found.arena.size_bytes, "steps": [], "doing": {}},
            )
            rank["steps"].append(found.generation.record["step"])
        for ticket in self._custody.tickets():
            for task, progress in list(ticket.running.items()):
                step = ticket.generation.record["step"]
                done = f"step {step}: {progress.done:,} bytes"
                ranks.get("ranks", {}).get(str(ticket.rank), {})["doing"][task] = done
        failures = {
            save_id: outcome.error
            for save_id, outcome in list(self._custody.outcomes.items())
            if outcome.error
        }
        return {
            "pid": os.getpid(),
            "folder": self._url,
            "ranks": ranks.get("ranks", {}),
            "replicas": ranks.get("replicas", {}),
            "failures": failures,
        }


def listen_at(path: Path) -> socket.socket:
    """Returns a socket that listens at a path, in place of what was there."""
    own_folder(path.parent)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with address_of(path) as address:
        listener.bind(address)
    listener.listen(256)
    return listener


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _pid_of(connection: Connection) -> int:
    """Returns the process at the other end; -1 if it has just hung up."""
    try:
        options = connection.socket.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
    except OSError:
        return -1
    pid: int = _CREDENTIALS.unpack(options)[0]
    return pid
