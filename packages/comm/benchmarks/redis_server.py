"""A Redis server of one's own, in a folder that goes with it, for tests and measurements."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from typing import Self

_PROGRAM = "redis-server"


def has_redis_server() -> bool:
    """Returns whether `redis-server` is installed."""
    return shutil.which(_PROGRAM) is not None


class RedisServer:
    """Runs `redis-server` on a free port of the loopback; a context manager.

    Args:
        password: Which it asks for.
        max_clients: How many connections it takes.

    Raises:
        DistributedError: It is not installed, or does not start.

    Example:
        >>> with RedisServer() as server:  # doctest: +SKIP
        ...     store = RedisStore(server.url("job"))
    """

    def __init__(self, *, password: str = "", max_clients: int = 10_000) -> None:
        """Starts nothing yet."""
        self._password = password
        self._max_clients = max_clients
        self._folder = Path(tempfile.mkdtemp(prefix="drivetrain-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        """Starts the server."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the server."""
        self.close()

    def url(self, job: str, password: str | None = None) -> str:
        """Returns the URL of a job on it, with its password or another one."""
        secret = self._password if password is None else password
        user = f":{secret}@" if secret else ""
        return f"redis://{user}127.0.0.1:{self.port}/{job}"

    def start(self) -> None:
        """Starts it, again on the same port if it ran before; its memory is empty."""
        if not has_redis_server():
            message = f"{_PROGRAM} is not installed: apt-get install {_PROGRAM}"
            raise DistributedError(message)
        self.port = self.port or _free_port()
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "save": "",
            "maxclients": str(self._max_clients),
            "tcp-backlog": "4096",
            **({"requirepass": self._password} if self._password else {}),
        }
        # In a file, since a command line shows the password to every user.
        lines = "".join(f'{name} "{value}"\n' for name, value in options.items())
        config = self._folder / "redis.conf"
        config.touch(mode=0o600)
        config.write_text(lines)
        log = self._folder / "log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [_PROGRAM, str(config)], stdout=file, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + 10
        while b"Ready to accept connections" not in log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = log.read_text(errors="replace")[-1000:]
                message = f"{_PROGRAM} did not start: {text}"
                raise DistributedError(message)
            time.sleep(0.01)

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stops it from answering, with all connections open, until `thaw` or `kill`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Has it answer again."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Kills it and removes its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
