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
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_checkpoint._listener import Listener
from drivetrain_checkpoint._service import Daemon

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

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
        return 0  # another daemon serves this job already
    with contextlib.suppress(OSError):
        # A trainer that is bound to some cores must not share them with what it starts.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(message)s")
    listener = Listener(path)
    daemon = Daemon(listener)
    signal.signal(signal.SIGTERM, lambda *_: daemon.stop())
    daemon.serve()
    if not daemon.stopped.is_set():
        listener.hide()
    # Threads that wait for a storage that hangs keep no process alive.
    os._exit(0)


def _is_alone(lock: int, path: Path) -> bool:
    """Takes the lock of the job; waits for a daemon that is about to end."""
    deadline = time.monotonic() + _TAKE_OVER_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if path.exists() or time.monotonic() > deadline:
            return False
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main())
