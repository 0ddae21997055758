"""The main process of a pod, as a process of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from drivetrain_cluster_double import launcher
from drivetrain_core import processes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Container", "launcher_command"]

_PATIENCE_S = 5.0


def launcher_command() -> list[str]:
    """Returns what starts a command that leaves nothing behind; the command follows."""
    # Isolated, and without what site-packages start, since it has to be quick.
    start = [sys.executable, "-I", "-S", launcher.__file__]
    libraries = Path(psutil.__file__).parents[1]
    return [*start, processes.__file__, str(libraries), str(os.getpid())]


class Container:
    """A process, and all that it starts; it ends when the thread that started it does.

    Args:
        command: The program and its arguments.
        variables: Of its environment, beside those of this process.
        folder: Where it runs.
        log: What it writes is added to this file.

    Attributes:
        handle: A file that becomes readable when the process has ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        folder: Path,
        log: Path,
    ) -> None:
        path = os.pathsep.join(
            [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]  # noqa: PTH120
        )
        start = launcher_command()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*start, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "PATH": path, **variables},
                start_new_session=True,
            )
        self.handle = os.pidfd_open(self._process.pid)

    def terminate(self) -> None:
        """Asks the process to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process, and all that it has started."""
        self._send(launcher.KILL)

    def code(self) -> int:
        """Returns what the process ended with, when it has."""
        code = self._process.wait(_PATIENCE_S)
        if code == -launcher.KILL:
            # It was killed before it could do anything itself.
            return 128 + signal.SIGKILL
        return 128 - code if code < 0 else code

    def close(self) -> int:
        """Ends the process if it runs; returns what it ended with."""
        if self._process.poll() is None:
            self.kill()
            try:
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self.code()
        os.close(self.handle)
        return code

    def _send(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
