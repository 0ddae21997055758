"""A worker's process, as the agent sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)
"""Signals by which schedulers say that the time of a job is nearly up."""


class ChildProcess:
    """A child whose end is an event; used from one event loop.

    Args:
        pid: Of the child.
        ended: Called once, with the exit code; a signal is its number below zero.
    """

    def __init__(self, pid: int, ended: Callable[[int], None]) -> None:
        self.pid = pid
        self.exit_code: int | None = None
        self._ended = ended
        self._descriptor = os.pidfd_open(pid)
        self._cpu_ticks = -1
        self._cpu_s = time.monotonic()
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    def _reap(self) -> None:
        # What it has started, such as loaders of data, ends with it; until it is waited
        # for, the number is its own.
        self.signal(signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.exit_code = os.waitstatus_to_exitcode(status)
        self._ended(self.exit_code)

    def signal(self, number: int) -> None:
        """Sends a signal to it and to what it has started."""
        if self.exit_code is not None:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # It has no session of its own yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def signal_alone(self, number: int) -> None:
        """Sends a signal to it, and not to what it has started."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def pass_on(self, number: int) -> bool:
        """Sends a signal to it if it has a handler for it; returns whether it has."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.pid}/status").read_text()
            for mask in re.findall(r"SigCgt:\s*([0-9a-f]+)", text):
                if int(mask, 16) >> (number - 1) & 1:
                    self.signal_alone(number)
                    return True
        return False

    def look(self) -> tuple[str, float]:
        """Returns the state of the process, and how long it has used no processor, in s."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return "X", 0.0
        fields = text.rsplit(")", 1)[1].split()
        ticks = int(fields[11]) + int(fields[12])
        now_s = time.monotonic()
        if ticks != self._cpu_ticks:
            self._cpu_ticks, self._cpu_s = ticks, now_s
        return fields[0], now_s - self._cpu_s
