"""The daemon of a node: it owns the memory that saves lie in, and brings them to storage.

It imports no torch and lives in a session of its own, so that neither the end of a
trainer nor a signal to its process group ends it. What it knows beyond the arenas it can
learn again: the arenas are handed to a new daemon by the trainers, and storage says
itself what is committed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _posix
from drivetrain_checkpoint._arena import Arena, Generation
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._manifest import ROOT_FILE, RankManifest, RootManifest
from drivetrain_checkpoint._wire import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Daemon", "main"]

logger = logging.getLogger(__name__)

_COMMIT_WAIT_S = 600.0
_POLL_S = 0.02
_SCAN_S = 0.25
_NUM_WRITERS = 4


@dataclass(slots=True)
class _Outcome:
    """What became of a save on this node."""

    error: str = ""
    waiting: set[int] = field(default_factory=set)


class Daemon:
    """Persists what trainers publish.

    Thread-safe: each connection has a thread, and each rank one that writes.

    Args:
        folder: Where checkpoints go.
        keep: How many checkpoints are kept.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        """Prepares an empty daemon."""
        self._folder = folder
        self._keep = keep
        self._arenas: dict[int, Arena] = {}
        self._writers: dict[int, queue.Queue[tuple[int, int, str]]] = {}
        self._done: dict[int, int] = {}
        self._busy: set[tuple[int, int]] = set()
        self._outcomes: dict[str, _Outcome] = {}
        self._changed = threading.Condition()
        self.stopped = threading.Event()

    def serve(self, listener: socket.socket) -> None:
        """Talks to whoever connects, until it is stopped."""
        listener.settimeout(0.2)
        while not self.stopped.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            sock.settimeout(None)
            connection = Connection(sock)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError), contextlib.closing(connection):
            while True:
                message, fd = connection.receive()
                try:
                    self._answer(connection, message, fd)
                except (OSError, ValueError, KeyError, RuntimeError) as error:
                    connection.send({"refused": f"{type(error).__name__}: {error}"})

    def _answer(
        self, connection: Connection, message: dict[str, Any], fd: int | None
    ) -> None:
        match message["op"]:
            case "arm":
                assert fd is not None
                self._arm(message["rank"], fd)
                connection.send({"ok": True})
            case "attach":
                with self._changed:
                    arenas = dict(self._arenas)
                connection.send({"ranks": sorted(arenas)})
                for rank in sorted(arenas):
                    connection.send({"rank": rank}, arenas[rank].fd)
            case "free":
                connection.send({"free": self._free(**_without_op(message))})
            case "saved":
                self._enqueue(**_without_op(message))
                connection.send({"ok": True})
            case "wait":
                connection.send(self._wait(message["save_id"], message["timeout_s"]))
            case "status":
                connection.send(self._status())
            case "stop":
                connection.send({"ok": True})
                self.stopped.set()
            case other:
                connection.send({"refused": f"there is no operation {other!r}"})

    def _arm(self, rank: int, fd: int) -> None:
        arena = Arena(fd)
        with self._changed:
            while any(r == rank for r, _ in self._busy):
                self._changed.wait()
            self._arenas[rank] = arena
            self._done[rank] = 0
            if rank not in self._writers:
                self._writers[rank] = queue.Queue()
                threading.Thread(target=self._write, args=(rank,), daemon=True).start()

    def _free(self, rank: int, index: int, timeout_s: float) -> bool:
        """Waits until a generation is not being written; returns whether it is so."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (rank, index) in self._busy:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return (rank, index) not in self._busy
        return True

    def _enqueue(self, rank: int, index: int, sequence: int, save_id: str) -> None:
        with self._changed:
            if rank not in self._arenas:
                message = f"rank {rank} has handed over no memory"
                raise ValueError(message)
            if sequence <= self._done[rank]:
                return  # its writer saw it before this word of it came
            self._busy.add((rank, index))
            self._outcomes.setdefault(save_id, _Outcome()).waiting.add(rank)
        self._writers[rank].put((index, sequence, save_id))

    def _write(self, rank: int) -> None:
        """Persists what a rank publishes, whether it lived to say so or not."""
        while True:
            wanted = None
            with contextlib.suppress(queue.Empty):
                wanted = self._writers[rank].get(timeout=_SCAN_S)
            with self._changed:
                arena, done = self._arenas[rank], self._done[rank]
                there = []
                if max(arena.sequences()) > done:
                    there = [g for g in arena.generations() if g.sequence > done]
                if wanted is not None:
                    there = [g for g in there if g.sequence == wanted[1]]
                if not there:
                    if wanted is not None:
                        self._settle(rank, wanted[0], wanted[2], "")
                    continue
                generation = there[0]
                self._busy.add((rank, generation.index))
            save_id = generation.record["save_id"]
            error, committed = "", None
            try:
                committed = self._persist(arena, generation)
            # Whatever goes wrong with one save is told to who waits for it; the daemon
            # lives on for the next.
            except Exception as problem:  # noqa: BLE001
                logger.warning("save %s of rank %d failed: %s", save_id, rank, problem)
                error = f"{type(problem).__name__}: {problem}"
            with self._changed:
                if self._arenas[rank] is arena:
                    self._done[rank] = generation.sequence
                self._settle(rank, generation.index, save_id, error)
            if committed is not None:
                self._retire(committed)

    def _settle(self, rank: int, index: int, save_id: str, error: str) -> None:
        """Frees a generation and tells who waits; the lock is held."""
        self._busy.discard((rank, index))
        outcome = self._outcomes.setdefault(save_id, _Outcome())
        outcome.waiting.discard(rank)
        outcome.error = outcome.error or error
        self._changed.notify_all()

    def _persist(self, arena: Arena, generation: Generation) -> RootManifest | None:
        """Writes a rank's part; returns what it committed, if it is the first rank."""
        record = generation.record
        manifest = RankManifest.from_fields(
            record["manifest"], f"generation {generation.sequence}"
        )
        path = _posix.make_folder(self._folder, manifest.step, manifest.save_id)
        if (path / ROOT_FILE).exists():
            return None  # a daemon before this one has done it
        address = arena.address + generation.image_at
        _posix.write_rank(path, manifest, address, _NUM_WRITERS)
        if manifest.rank != 0:
            return None
        deadline = time.monotonic() + _COMMIT_WAIT_S
        while (ranks := _posix.find_rank_manifests(path, manifest.world_size)) is None:
            if time.monotonic() > deadline:
                message = f"a rank of step {manifest.step} has written nothing"
                raise TimeoutError(message)
            time.sleep(_POLL_S)
        root = RootManifest(
            job=manifest.job,
            step=manifest.step,
            save_id=manifest.save_id,
            saved_at_ns=record["saved_at_ns"],
            world_size=manifest.world_size,
            entries=record["entries"],
            ranks=tuple(ranks),
        )
        _posix.commit(path, root)
        return root

    def _retire(self, newest: RootManifest) -> None:
        """Deletes what is no longer kept; never what was committed last.

        Nobody waits for it: large files take their time to go.
        """
        saved = _posix.list_saved(self._folder)
        replaced = [
            s
            for s in saved
            if s.root.step == newest.step and s.root.save_id != newest.save_id
        ]
        others = [s for s in saved if s not in replaced]
        for old in [*replaced, *others[: max(0, len(others) - self._keep)]]:
            try:
                _posix.remove(old.path)
            except StorageError as error:
                logger.warning("an old checkpoint stays: %s", error)

    def _wait(self, save_id: str, timeout_s: float | None) -> dict[str, Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                outcome = self._outcomes.get(save_id)
                if outcome is None:
                    return {"state": "unknown"}
                if outcome.error:
                    return {"state": "failed", "error": outcome.error}
                if not outcome.waiting:
                    return {"state": "written"}
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return {"state": "pending"}
                self._changed.wait(left)

    def _status(self) -> dict[str, Any]:
        with self._changed:
            return {
                "pid": os.getpid(),
                "folder": str(self._folder),
                "ranks": {
                    str(rank): {
                        "memory_bytes": arena.size_bytes,
                        "steps": [g.record["step"] for g in arena.generations()],
                        "writing": sorted(i for r, i in self._busy if r == rank),
                    }
                    for rank, arena in self._arenas.items()
                },
            }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a daemon until it is stopped: `SOCKET FOLDER KEEP`.

    The process that was started returns at once; the daemon is its grandchild.
    """
    place, folder, keep = list(sys.argv[1:] if argv is None else argv)
    path = Path(place)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    if os.fork():
        os._exit(0)
    os.setsid()
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another daemon serves this job already
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(256)
    daemon = Daemon(Path(folder), int(keep))
    signal.signal(signal.SIGTERM, lambda *_: daemon.stopped.set())
    daemon.serve(listener)
    path.unlink(missing_ok=True)
    return 0


def _without_op(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "op"}


if __name__ == "__main__":
    sys.exit(main())
