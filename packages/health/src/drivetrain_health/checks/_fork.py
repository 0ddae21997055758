"""The server of measurements as a fork of this process, where that is safe and saves seconds."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# They have threads of their own, which a fork would lack.
_THREADED = {"grpc"}


def may_fork() -> bool:
    """Whether a fork of this process has torch, and all that a new process would have."""
    if "torch" not in sys.modules or _THREADED & sys.modules.keys():
        return False
    return threading.active_count() == 1


class Fork:
    """A child that runs a function; it has the interface of `subprocess.Popen`.

    Args:
        run: The function. When it returns, the child ends.
        kept: The descriptor that it needs; all others but the standard ones are closed.

    Attributes:
        pid: Of the child.
        returncode: How it has ended; None while it has not.
    """

    def __init__(self, run: Callable[[], None], kept: int) -> None:
        self.returncode: int | None = None
        with warnings.catch_warnings():
            # What there is of threads are those of a library of linear algebra, which
            # starts them anew in a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _be_child(run, kept)
        self._descriptor = os.pidfd_open(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended, and returns its exit code.

        Raises:
            subprocess.TimeoutExpired: The time was up.
        """
        if self.returncode is None:
            if not select.select([self._descriptor], [], [], timeout)[0]:
                what = f"process {self.pid}"
                raise subprocess.TimeoutExpired(what, timeout or 0.0)
            _, status = os.waitpid(self.pid, 0)
            os.close(self._descriptor)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        """Kills it, if it has not ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


def _be_child(run: Callable[[], None], kept: int) -> None:
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for entry in list(Path("/proc/self/fd").iterdir()):
            if int(entry.name) > 2 and int(entry.name) != kept:
                with contextlib.suppress(OSError):
                    os.close(int(entry.name))
        # The parent's may have been redirected to what is closed now.
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        run()
        code = 0
    except BaseException:  # noqa: BLE001  (nothing of the parent may run on in here)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
