"""A trainer's way to the daemon of its node, which is started when there is none."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import DaemonError
from drivetrain_checkpoint._wire import Connection, socket_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Client"]

_START_S = 20.0
_ATTEMPTS = 4


class Client:
    """Talks to the daemon; a daemon that died is replaced, and armed again.

    Thread-safe: one request at a time.

    Args:
        job: The job's name.
        folder: Where checkpoints go.
        keep: How many of them are kept.
    """

    def __init__(self, job: str, folder: Path, keep: int) -> None:
        """Finds out where the daemon listens; nothing is started yet."""
        self._path = socket_path(job, folder)
        self._arguments = [str(self._path), str(folder.resolve()), str(keep)]
        self._connection: Connection | None = None
        self._armed: dict[int, int] = {}
        self._lock = threading.Lock()

    def ask(self, message: dict[str, Any], fd: int | None = None) -> dict[str, Any]:
        """Returns the daemon's answer.

        Raises:
            DaemonError: It cannot be started, or refuses.
        """
        with self._lock:
            return self._ask(message, fd)

    def arm(self, rank: int, fd: int) -> None:
        """Hands memory over to the daemon, and to every daemon after it."""
        self.ask({"op": "arm", "rank": rank}, fd)
        self._armed[rank] = fd

    def attach(self) -> dict[int, int]:
        """Returns the descriptors of the memory that the daemon holds, by rank."""
        with self._lock:
            ranks = self._ask({"op": "attach"})["ranks"]
            found = {}
            assert self._connection is not None
            for _ in ranks:
                message, fd = self._connection.receive()
                assert fd is not None
                found[int(message["rank"])] = fd
            return found

    def is_running(self) -> bool:
        """Whether a daemon answers; none is started for it."""
        with contextlib.suppress(OSError):
            _connect(self._path).close()
            return True
        return False

    def close(self) -> None:
        """Ends the conversation; the daemon lives on."""
        with self._lock:
            self._hang_up()

    def _ask(self, message: dict[str, Any], fd: int | None = None) -> dict[str, Any]:
        problem: OSError | EOFError | None = None
        for _ in range(_ATTEMPTS):
            try:
                connection = self._connect()
                connection.send(message, fd)
                answer, _ = connection.receive()
            except (OSError, EOFError) as error:
                # It died: a new one gets the memory of those before, and the question.
                problem = error
                self._hang_up()
                continue
            if "refused" in answer:
                text = f"the checkpoint daemon refuses: {answer['refused']}"
                raise DaemonError(text)
            return answer
        text = f"the checkpoint daemon does not answer: {problem or 'it dies at once'}"
        raise DaemonError(text) from problem

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._open()
            for rank, fd in self._armed.items():
                self._connection.send({"op": "arm", "rank": rank}, fd)
                self._connection.receive()
        return self._connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        deadline = time.monotonic() + _START_S
        with contextlib.suppress(OSError):
            return _connect(self._path)
        command = [sys.executable, "-m", "drivetrain_checkpoint._daemon"]
        # Nothing of the trainer's own stays open in it, its terminal neither.
        done = subprocess.run(
            [*command, *self._arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=True,
        )
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                return _connect(self._path)
            time.sleep(0.005)
        message = (
            f"the checkpoint daemon did not start within {_START_S:.0f} s "
            f"(exit status {done.returncode}); run `{' '.join(command)}` by hand"
        )
        raise DaemonError(message)


def _connect(path: Path) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    return Connection(sock)
