"""The daemon of a node: it owns the memory that saves lie in, and brings them to storage.

It imports no torch and lives in a session of its own, so that neither the end of a
trainer nor a signal to its process group ends it. What it knows beyond the arenas it can
learn again: the arenas are handed to a new daemon by the trainers, and storage says
itself what is committed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_checkpoint._daemon.listener import Listener
from drivetrain_checkpoint._daemon.service import Daemon
from drivetrain_checkpoint._peers.connection import address_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_TAKE_OVER_S = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a daemon until it is stopped: `SOCKET`.

    The process that was started returns at once; the daemon is its grandchild.
    """
    (place,) = list(sys.argv[1:] if argv is None else argv)
    path = Path(place)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    if os.fork():
        os._exit(0)
    os.setsid()
    if not _is_alone(lock, path):
        if not path.exists():
            sys.stderr.write(f"another daemon has the job, and has left {path}\n")
        return 0  # another daemon serves this job already
    with contextlib.suppress(OSError):
        # A trainer that is bound to some cores must not share them with what it starts.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(message)s")
    # One for each trainer, node and save in memory; the usual limit is that of `select`.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = Listener(path)
    daemon = Daemon(listener)
    signal.signal(signal.SIGTERM, lambda *_: daemon.leave())
    daemon.serve()
    if not daemon.stopped.is_set():
        listener.hide()
    # Threads that wait for a storage that hangs keep no process alive.
    os._exit(0)


def _is_alone(lock: int, path: Path) -> bool:
    """Takes the locks of the job; waits for a daemon that is about to end.

    There are two. The file keeps out who shares the folder, be it from another
    container; but with the file deleted, a daemon that lives holds nothing any more.
    The name of a socket without a file nobody can delete.
    """
    deadline = time.monotonic() + _TAKE_OVER_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _take_name(path):
                return True
            fcntl.flock(lock, fcntl.LOCK_UN)
        # One that was killed has left its socket, and may hold the locks a while yet.
        if _answers(path) or time.monotonic() > deadline:
            return False
        time.sleep(0.005)


def _answers(path: Path) -> bool:
    """Whether somebody listens, be it that nothing is accepted for now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_TAKE_OVER_S)
        try:
            with address_of(path) as address:
                probe.connect(address)
        except TimeoutError:
            return True
        except OSError:
            return False
    return True


def _take_name(path: Path) -> bool:
    """Takes the name of a daemon, for as long as this process lives."""
    # Containers that share the network see each other's names, but not each other's
    # folders: those of one path are others.
    mounts = 0
    with contextlib.suppress(OSError):  # some sandboxes have no such file
        mounts = Path("/proc/self/ns/mnt").stat().st_ino
    text = f"{os.getuid()}\0{mounts}\0{path}".encode()
    name = f"\0drivetrain-checkpoint-{hashlib.sha256(text).hexdigest()}"
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(name)
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    holder.detach()  # open until the end of the process
    return True


if __name__ == "__main__":
    sys.exit(main())
