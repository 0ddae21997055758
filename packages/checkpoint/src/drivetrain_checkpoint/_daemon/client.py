"""Client of the daemon of this node, which starts one when there is none."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._errors import DaemonError
from drivetrain_checkpoint._peers.connection import (
    Connection,
    address_of,
    own_folder,
    socket_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drivetrain_checkpoint._daemon.settings import Settings

_Answer = TypeVar("_Answer")

_START_S = 20.0
_STARTS = 4
_ATTEMPTS = 4
_ANSWER_S = 10.0
_SLOW = frozenset({"arm", "stop"})
"""Questions whose answer may take as long as storage does."""


@functools.cache
def _all_clients() -> weakref.WeakSet[Client]:
    """Returns the clients of this process, which a fork must not share."""
    clients: weakref.WeakSet[Client] = weakref.WeakSet()

    def let_go() -> None:
        for client in list(clients):
            client.forked()

    os.register_at_fork(after_in_child=let_go)
    return clients


class Client:
    """Talks to the daemon; a daemon that died is replaced, and learns all of it again.

    Thread-safe: one request at a time.

    Args:
        settings: How the daemon is to serve the job.
        path: Where the daemon listens, if that is known.
    """

    def __init__(self, settings: Settings, path: Path | None = None) -> None:
        """Finds out where the daemon listens; nothing is started yet."""
        self.settings = settings
        self._path = path or socket_path(settings.job, settings.url)
        self._connection: Connection | None = None
        self._joined: dict[str, Any] | None = None
        self._armed: dict[int, Arena] = {}
        self._lent: dict[int, Arena] = {}
        self._lock = threading.RLock()
        self._is_asking = False
        self._is_foreign = False
        self.is_retired = False
        _all_clients().add(self)

    def ask(self, message: dict[str, Any], fd: int | None = None) -> dict[str, Any]:
        """Returns the daemon's answer.

        Args:
            message: The question.
            fd: A descriptor that goes with it.

        Raises:
            DaemonError: It cannot be started, or refuses.
        """
        return self._talk(lambda client: client._exchange(message, fd)[0])

    def hello(self) -> dict[str, Any]:
        """Returns what the daemon calls itself, and its process."""
        return self.ask(self.settings.hello())

    def join(self, about: dict[str, Any]) -> None:
        """Tells the daemon, and every one after it, who saves the job, and how."""
        message = {"op": "join", **about, "settings": self.settings.changing()}
        self.ask(message)
        self._joined = message
        self.is_retired = False

    def arm(self, rank: int, arena: Arena) -> None:
        """Hands memory over to the daemon, and to every daemon after it.

        Raises:
            DaemonError: Another process saves this rank.
        """
        self.ask({"op": "arm", "rank": rank}, arena.fd)
        self._armed[rank] = arena

    def adopt(self, rank: int) -> Arena | None:
        """Returns the memory that a rank had handed over before it died, if it did.

        Raises:
            DaemonError: Another process saves this rank.
        """
        question = {"op": "adopt", "rank": rank}
        _, fd = self._talk(lambda client: client._exchange(question))
        if fd is None:
            return None
        self._armed[rank] = arena = Arena(fd)
        return arena

    def twin(self) -> Client:
        """Returns a conversation beside this one, which saves nothing.

        A daemon that it has to start learns of the memory too.
        """
        other = self.beside()
        other._joined, other._lent = self._joined, dict(self._armed)
        return other

    def beside(self) -> Client:
        """Returns another conversation with this daemon.

        It is the same one whatever has become of the environment.
        """
        return Client(self.settings, self._path)

    def attach(self) -> list[int]:
        """Returns the descriptors of the memory that the daemon holds."""
        return self._talk(Client._attach)

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

    def _talk(self, what: Callable[[Client], _Answer]) -> _Answer:
        """Asks in this conversation.

        A signal handler that runs in the midst of a question has a conversation of its
        own.
        """
        with self._lock:
            if self._is_asking:
                with contextlib.closing(self.beside()) as other:
                    return what(other)
            try:
                self._is_asking = True
                return what(self)
            except DaemonError:
                raise
            except BaseException:
                # An answer that nobody has read would be the next question's.
                self._hang_up()
                raise
            finally:
                self._is_asking = False

    def _attach(self) -> list[int]:
        count = self._exchange({"op": "attach"})[0]["count"]
        assert self._connection is not None
        found = [self._connection.receive()[1] for _ in range(count)]
        return [fd for fd in found if fd is not None]

    def _exchange(
        self, message: dict[str, Any], fd: int | None = None
    ) -> tuple[dict[str, Any], int | None]:
        problem: OSError | EOFError | None = None
        for _ in range(_ATTEMPTS):
            try:
                connection = self._connect()
                limit = message.get("timeout_s", 0.0)
                patient = limit is None or message["op"] in _SLOW
                connection.socket.settimeout(None if patient else limit + _ANSWER_S)
                connection.send(message, fd)
                answer, received = connection.receive()
            except TimeoutError as error:
                self._hang_up()
                text = (
                    f"the checkpoint daemon has not answered for {_ANSWER_S:g} s: is it "
                    "stopped, or its machine overloaded?"
                )
                raise DaemonError(text) from error
            except DaemonError:
                self._hang_up()
                raise
            except (OSError, EOFError) as error:
                # It died: a new one learns what those before knew, and the question.
                problem = error
                self._hang_up()
                continue
            _check(answer)
            return answer, received
        text = f"the checkpoint daemon does not answer: {problem or 'it dies at once'}"
        raise DaemonError(text) from problem

    def _connect(self) -> Connection:
        if self._is_foreign:
            message = (
                "this checkpointer belongs to the process that this one was forked "
                "from; make another here"
            )
            raise DaemonError(message)
        if self._connection is None:
            connection = self._open()
            try:
                _check(connection.ask(self.settings.hello()))
                if self._joined is not None:
                    _check(connection.ask(self._joined))
                for op, arenas in (("arm", self._armed), ("lend", self._lent)):
                    for rank, arena in list(arenas.items()):
                        connection.send({"op": op, "rank": rank}, arena.fd)
                        _check(connection.receive()[0])
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def retire(self) -> None:
        """Ends the conversation with a daemon that was stopped, and its memory."""
        self.close()
        self.is_retired = True
        self._armed.clear()
        self._joined = None

    def forked(self) -> None:
        """Lets go of the conversation in a forked process: it is the other one's."""
        self._is_foreign = True
        self._lock = threading.RLock()
        self._is_asking = False
        self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        with contextlib.suppress(OSError):
            return _connect(self._path)
        own_folder(self._path.parent)  # somebody may have cleaned up
        log = self._path.with_suffix(".log")
        log.write_bytes(b"")
        for _ in range(_STARTS):
            status = _start(self._path, log)
            until = time.monotonic() + _START_S / _STARTS
            while status == 0 and time.monotonic() < until:
                with contextlib.suppress(OSError):
                    return _connect(self._path)
                time.sleep(0.005)
        message = (
            f"the checkpoint daemon did not start within {_START_S:.0f} s "
            f"(exit status {status}); its log, {log}, ends with: "
            f"{log.read_text(errors='replace')[-1000:] or 'nothing'}"
        )
        raise DaemonError(message)


def _start(path: Path, log: Path) -> int:
    """Starts a daemon, which ends if another serves the job; returns the status."""
    # Without the current folder, whose files could pass for modules of Python's.
    command = [sys.executable, "-P", "-m", "drivetrain_checkpoint._daemon", str(path)]
    with log.open("ab") as output:
        # Nothing of the trainer's own stays open in it, its terminal neither.
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            close_fds=True,
        )
    return done.returncode


def visit(job: str, url: str, message: dict[str, Any]) -> dict[str, Any] | None:
    """Returns what a daemon answers to somebody who is no trainer; None if none runs.

    It is told nothing of how to serve the job: that is up to its trainers.

    Args:
        job: The job's name.
        url: Where its checkpoints go.
        message: The question.

    Raises:
        DaemonError: It refuses.
    """
    try:
        connection = _connect(socket_path(job, url))
    except OSError:
        return None
    with contextlib.closing(connection):
        try:
            answer = connection.ask(message)
        except (OSError, EOFError) as error:
            text = f"the checkpoint daemon hung up: {error}"
            raise DaemonError(text) from error
    _check(answer)
    return answer


def _check(answer: dict[str, Any]) -> None:
    if "refused" in answer:
        message = f"the checkpoint daemon refuses: {answer['refused']}"
        raise DaemonError(message)


def _connect(path: Path) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(path) as address:
            sock.connect(address)
    except OSError:
        sock.close()
        raise
    return Connection(sock)
