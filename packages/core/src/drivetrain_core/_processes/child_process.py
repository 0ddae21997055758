"""A process that runs a module of this package: started anew, or forked from a server.

Both end when this process does, whatever they are doing. A fork is there in milliseconds,
with what takes seconds to import imported, where a new process takes those seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from drivetrain_core._processes.fork_server import MARKER, NO_MARK
from drivetrain_core.processes import ASK_WITHOUT_START

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_SERVER = "drivetrain_core._processes.fork_server"
# What libraries read when they are imported, which a server has done before it forks.
_READ_AT_IMPORT = (
    "CUDA", "GOMP_", "KMP_", "LD_", "MKL_", "OMP_", "PYTHON", "PYTORCH_", "TORCH",
)  # fmt: skip
# How long a server waits for the next fork: a search ends, and training begins.
_IDLE_S = 30.0
# How long one may take to import what it shall.
_START_S = 120.0
_END_WAIT_S = 5.0


class ChildProcess(Protocol):
    """A process of its own group, which ends when this process does.

    Attributes:
        pid: Its number, and that of its group, until it is reaped.
    """

    pid: int

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for its end; returns its exit code, or the negative of a signal.

        Raises:
            TimeoutError: It still runs.
        """

    def kill(self) -> None:
        """Ends it and its group. Safe to call again."""

    def reap(self, timeout_s: float | None = None) -> None:
        """Lets go of it, after it was killed and nobody waits for it any more.

        Raises:
            TimeoutError: The kernel holds it still, as one that waits for a device.
        """


class NewProcess:
    """A process whose Python and libraries start with its environment.

    Args:
        module: The module that it runs, as a program.
        arguments: What the program is called with.
        env: Its environment.
        output: The file for what it prints, opened for writing.
        channel: A socket that it is handed: its number and that of this process follow
            the arguments. Without one, standard input is a pipe that closes when this
            process ends.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        channel: socket.socket | None = None,
    ) -> None:
        command = [sys.executable, "-P", "-m", module, *arguments]
        kept = () if channel is None else (channel.fileno(),)
        if channel is not None:
            command += [str(channel.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if channel else subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=kept,
            env=dict(env),
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._exit_code: int | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for its end; returns its exit code, or the negative of a signal."""
        if self._exit_code is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                if not select.select([descriptor], [], [], timeout_s)[0]:
                    raise TimeoutError
            finally:
                os.close(descriptor)
            # Not reaped here, so that its group stays ours until it is killed.
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            assert info is not None
            exited = info.si_code == os.CLD_EXITED
            self._exit_code = info.si_status if exited else -info.si_status
        return self._exit_code

    def kill(self) -> None:
        """Ends it and its group."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self, timeout_s: float | None = None) -> None:
        """Lets go of it, after it was killed and nobody waits for it any more."""
        self.wait(timeout_s)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class ForkedProcess:
    """A process that is there at once, with modules imported before it was asked for.

    The servers that it comes from start with the first use, one for each set of those
    variables that libraries read when they are imported, and end some time after the
    last process of theirs.

    Args:
        module: The module whose `main` it calls with the arguments.
        arguments: What that is called with.
        env: Its environment.
        output: The file for what it prints, opened for writing.
        channel: As for `NewProcess`; the second number is the server's.
        imported: The modules that the server imports as it starts.
        more: Those that it imports before this process, if it has not yet.
        idle_s: How long the server waits for another process, in seconds.

    Raises:
        TimeoutError: The server did not start in time.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        channel: socket.socket | None = None,
        imported: tuple[str, ...],
        more: Collection[str] = (),
        idle_s: float = _IDLE_S,
    ) -> None:
        request = {
            "module": module,
            "arguments": list(arguments),
            "env": dict(env),
            "directory": os.getcwd(),  # noqa: PTH109
            "path": sys.path,
            "more": list(more),
        }
        self._line, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._exit_code: int | None = None
        self._idle_s = idle_s
        self._server = None
        self._stdin = -1
        with contextlib.ExitStack() as stack:
            stack.enter_context(line)
            # A packet could not hold a large environment.
            asked = stack.enter_context(os.fdopen(os.memfd_create("request"), "wb"))
            asked.write(json.dumps(request).encode())
            asked.flush()
            if channel is None:
                stdin, self._stdin = os.pipe()
            else:
                stdin = os.open(os.devnull, os.O_RDONLY)
            stack.callback(os.close, stdin)
            given = [asked.fileno(), stdin, output, line.fileno()]
            given += [] if channel is None else [channel.fileno()]
            try:
                self._server = _send(env, imported, given)
            except BaseException:
                self._close()
                raise
        self.pid = self._number()

    def _number(self) -> int:
        """Returns what the server tells; 0 when it ended, whose exit code is ours then.

        Raises:
            TimeoutError: The server has not imported what it shall; it is ended.
        """
        assert self._server is not None
        self._line.settimeout(_START_S)
        try:
            told = self._line.recv(32)
        except TimeoutError:
            self._server.process.kill()
            self._close()
            message = f"what forks processes did not start within {_START_S:g} s"
            raise TimeoutError(message) from None
        if not told:
            self._exit_code = self._server.process.wait()
            return 0
        return int(told)

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for its end; returns its exit code, or the negative of a signal."""
        if self._exit_code is None:
            self._line.settimeout(timeout_s)
            told = self._line.recv(32)
            self._exit_code = int(told) if told else -signal.SIGKILL
        return self._exit_code

    def kill(self) -> None:
        """Ends it and its group."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def reap(self, timeout_s: float | None = None) -> None:
        """Lets go of it, after it was killed and nobody waits for it any more."""
        # The server closes its end when the process is no more.
        self._line.settimeout(timeout_s)
        while self._line.recv(32):
            pass
        self._close()

    def _close(self) -> None:
        self._line.close()
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        if self._server is not None:
            _release(self._server, self._idle_s)
            self._server = None


@dataclass(eq=False, slots=True)
class _Server:
    """A server, and how many processes of it are not reaped yet."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    num_open: int = 0
    end: threading.Timer | None = field(default=None)


# A process that was forked from the one that started a server needs its own.
_Key = tuple[int, tuple[str, ...], frozenset[tuple[str, str]]]
_servers: dict[_Key, _Server] = {}
_changing = threading.RLock()


def servers() -> list[int]:
    """Returns the numbers of the servers of this process."""
    with _changing:
        return [s.process.pid for key, s in _servers.items() if key[0] == os.getpid()]


def _send(
    env: Mapping[str, str], imported: tuple[str, ...], descriptors: list[int]
) -> _Server:
    """Sends a request to the server for an environment, started if there is none."""
    early = {n: v for n, v in env.items() if n.startswith(_READ_AT_IMPORT)}
    # A fork gets the path of its caller.
    early.pop("PYTHONPATH", None)
    key = os.getpid(), imported, frozenset(early.items())
    with _changing:
        try:
            return _sent(key, early, descriptors)
        except ConnectionError:
            # Somebody has killed it since it was used last.
            _forget(key)
            return _sent(key, early, descriptors)


def _sent(key: _Key, early: Mapping[str, str], descriptors: list[int]) -> _Server:
    if key not in _servers:
        _servers[key] = _start(key[1], early)
    server = _servers[key]
    if server.end is not None:
        server.end.cancel()
        server.end = None
    socket.send_fds(server.line, [b"fork"], descriptors)
    server.num_open += 1
    return server


def _start(imported: tuple[str, ...], early: Mapping[str, str]) -> _Server:
    line, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = its_end.fileno()
    others = {n: v for n, v in os.environ.items() if not n.startswith(_READ_AT_IMPORT)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _SERVER, str(number), *imported],
        stdin=subprocess.DEVNULL,
        env={
            **others,
            **early,
            "PYTHONPATH": os.pathsep.join(sys.path),
            **ASK_WITHOUT_START,
            MARKER: NO_MARK,
        },
        pass_fds=[number],
        start_new_session=True,
    )
    its_end.close()
    return _Server(process, line)


def _release(server: _Server, idle_s: float) -> None:
    """Ends a server some time after its last process is gone."""
    with _changing:
        server.num_open -= 1
        if server.num_open == 0 and server in _servers.values():
            server.end = threading.Timer(idle_s, _end_idle, (server,))
            server.end.daemon = True
            server.end.start()


def _end_idle(server: _Server) -> None:
    with _changing:
        key = next((k for k, one in _servers.items() if one is server), None)
        if key is not None and server.num_open == 0:
            _forget(key)


def _forget(key: _Key) -> None:
    """Ends a server with all processes of it."""
    server = _servers.pop(key, None)
    if server is not None:
        if server.end is not None:
            server.end.cancel()
        server.line.close()
        try:
            server.process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()


@atexit.register
def _forget_all() -> None:
    for key in list(_servers):
        if key[0] == os.getpid():
            _forget(key)
