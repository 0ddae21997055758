"""Questions and answers between this process and one that it has started."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from drivetrain_core import DrivetrainError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self


# Of a traceback.
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


class ChildError(DrivetrainError, RuntimeError):
    """A process of the main job has failed, or has ended before its time."""


def last_line(log: Path) -> str:
    """Returns what a process has said last, which is its error if it failed, and where."""
    lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    if not lines:
        return "nothing"
    places = [place for line in lines if (place := _PLACE.search(line))]
    where = f", {places[-1][1]}:{places[-1][2]}" if places else ""
    return f"{lines[-1]}{where}"


class Channel:
    """One end of a connection, on which each message is a line of JSON.

    Args:
        end: The socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._file = end.makefile("rwb")

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message."""
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message; None once the other end is closed."""
        line = self._file.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        """Closes this end."""
        self._file.close()
        self._socket.close()


class Child:
    """A process that answers; a context manager, at whose end the process ends.

    Args:
        module: What it runs; it finds its end of the connection's descriptor as its
            argument.
        log: Where its output goes.
    """

    def __init__(self, module: str, log: Path) -> None:
        here, there = socket.socketpair()
        self._log = log
        with there, log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[there.fileno()],
            )
        self._channel = Channel(here)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Sends a question, and returns the answer.

        Raises:
            ChildError: The process says so, or has ended.
        """
        try:
            self._channel.send({"do": do, **arguments})
            answer = self._channel.receive()
        except OSError:
            answer = None
        if answer is None:
            code = self._process.wait()
            how = f"with {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
            said = f"{last_line(self._log)} (all of it is in {self._log})"
            message = f"a process of the job has ended {how}, and said last: {said}"
            raise ChildError(message)
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """Ends the process, which closes with the connection."""
        self._channel.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
