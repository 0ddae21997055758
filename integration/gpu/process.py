"""Processes with a limit of time, each ended together with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ended", "Processes"]

# What a row that is over its limit has to write what it knows.
_LAST_WORDS_S = 8.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process has ended.

    Args:
        code: Its exit status.
        seconds: How long it ran.
        stopped: Whether it was ended because it was over its limit.
    """

    code: int
    seconds: float
    stopped: bool


class Processes:
    """Runs processes, from any thread, and can end all of them."""

    def __init__(self) -> None:
        # Taken again by a signal's handler, in whatever it interrupts.
        self._lock = threading.RLock()
        self._running: set[int] = set()
        self._closed = self._is_starting = False

    def run(
        self,
        command: Sequence[str],
        *,
        limit_s: float | None,
        environment: Mapping[str, str],
        folder: Path,
        output: Path,
        log: Path,
    ) -> Ended:
        """Runs a command until it ends, or its limit.

        Args:
            command: The program and its arguments.
            limit_s: Seconds that it may take; then it is interrupted, and killed if that
                does not end it.
            environment: All variables.
            folder: Where it runs.
            output: The file of its standard output.
            log: The file of its standard error.

        Raises:
            SystemExit: All were ended while this one was started.
        """
        started = time.monotonic()
        with self._lock, output.open("ab") as out, log.open("ab") as err:
            if self._closed:
                return Ended(code=-signal.SIGTERM, seconds=0.0, stopped=True)
            self._is_starting = True
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
                self._running.add(process.pid)
            finally:
                self._is_starting = False
            if self._closed:
                _signal(process.pid, signal.SIGKILL)
                process.wait()
                raise SystemExit(128 + signal.SIGTERM)
        stopped = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            stopped = True
            _signal(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WORDS_S)
        # What it started may still be there.
        _signal(process.pid, signal.SIGKILL)
        code = process.wait()
        with self._lock:
            self._running.discard(process.pid)
            stopped = stopped or self._closed
        seconds = round(time.monotonic() - started, 1)
        return Ended(code=code, seconds=seconds, stopped=stopped)

    def close(self) -> bool:
        """Kills what runs, and starts nothing any more.

        Returns:
            Whether all are gone. Of one whose start this call interrupts, as a signal's
            handler does, nobody knows yet: whoever starts it ends it.
        """
        with self._lock:
            self._closed = True
            for pid in self._running:
                _signal(pid, signal.SIGKILL)
            return not self._is_starting


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
