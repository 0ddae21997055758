"""The process of one rank: started anew, or forked from one that has imported torch."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ForkedRank", "NewRank", "RankProcess"]

_PACKAGE = "drivetrain_core.testing"
# Sets are walked in another order in ranks of odd numbers, as between fresh processes.
_NUM_HASH_SEEDS = 2


class RankProcess(Protocol):
    """The process of a rank. It ends when this process does, whatever it is doing."""

    def wait(self) -> int:
        """Waits for its end; returns its exit code, or the negative of a signal."""
        ...

    def kill(self) -> None:
        """Ends it and whatever it has started."""
        ...

    def reap(self) -> None:
        """Lets go of it, after it was killed and nobody waits for it any more."""
        ...


class NewRank:
    """A rank whose Python and libraries start with its environment.

    Args:
        folder: With what it is to do.
        env: Its environment.
        log: The file for its output, opened for writing.
    """

    def __init__(self, folder: Path, env: Mapping[str, str], log: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{_PACKAGE}._rank_main", str(folder)],
            # The child leaves when this pipe closes, and so when this process dies.
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )

    def wait(self) -> int:
        """Waits for its end; returns its exit code, or the negative of a signal."""
        # Not reaped here, so that its process group stays ours until it is killed.
        info = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        exited = info.si_code == os.CLD_EXITED
        return info.si_status if exited else -info.si_status

    def kill(self) -> None:
        """Ends it and whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Lets go of it, after it was killed and nobody waits for it any more."""
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


class ForkedRank:
    """A rank that is there at once, with torch imported before its environment was set.

    Args:
        folder: With what it is to do.
        env: Its environment, which has `RANK`.
        log: The file for its output, opened for writing.
    """

    def __init__(self, folder: Path, env: Mapping[str, str], log: int) -> None:
        request = {
            "folder": str(folder),
            "env": dict(env),
            "directory": os.getcwd(),  # noqa: PTH109
            "path": sys.path,
        }
        self._line, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, self._stdin = os.pipe()
        try:
            packet = json.dumps(request).encode()
            descriptors = [stdin, log, line.fileno()]
            seed = int(env["RANK"]) % _NUM_HASH_SEEDS
            server = _server(seed)
            try:
                socket.send_fds(server, [packet], descriptors)
            except ConnectionError:
                # Somebody has killed it since it was used last.
                _forget(seed, server)
                socket.send_fds(_server(seed), [packet], descriptors)
        except BaseException:
            self._line.close()
            os.close(self._stdin)
            raise
        finally:
            line.close()
            os.close(stdin)

    def wait(self) -> int:
        """Waits for its end; returns its exit code, or the negative of a signal."""
        told = self._line.recv(32)
        return int(told) if told else -signal.SIGKILL

    def kill(self) -> None:
        """Ends it and whatever it has started."""
        self._line.shutdown(socket.SHUT_WR)

    def reap(self) -> None:
        """Lets go of it, after it was killed and nobody waits for it any more."""
        # The server closes its end when the process is no more.
        while self._line.recv(32):
            pass
        self._line.close()
        os.close(self._stdin)


# A process that was forked from the one that started a server needs its own.
_servers: dict[tuple[int, int], tuple[subprocess.Popen[bytes], socket.socket]] = {}
_changing = threading.Lock()


def _server(seed: int) -> socket.socket:
    """Returns the line to the server with a hash seed, started if this is the first use."""
    with _changing:
        key = seed, os.getpid()
        if key not in _servers:
            _servers[key] = _start_server(seed)
        return _servers[key][1]


def _forget(seed: int, line: socket.socket) -> None:
    """Lets go of a server, so that the next use starts another, if nobody else has."""
    key = seed, os.getpid()
    with _changing:
        process, current = _servers.get(key, (None, None))
        if process is None or current is not line:
            return
        del _servers[key]
        line.close()
        process.kill()
        process.wait()


def _start_server(seed: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    line, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = its_end.fileno()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", f"{_PACKAGE}._rank_server", str(number)],
        stdin=subprocess.DEVNULL,
        env={
            "PYTHONHASHSEED": str(seed + 1),
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        pass_fds=[number],
        start_new_session=True,
    )
    its_end.close()
    return process, line


@atexit.register
def _forget_all() -> None:
    for (seed, owner), (_process, line) in list(_servers.items()):
        if owner == os.getpid():
            _forget(seed, line)
