"""Network namespaces without names: the kernel removes them with their last process.

A namespace is kept by a file descriptor of this process. So two programs never take each
other's, and none is left behind, also when this process is killed.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_health.faults._errors import FaultError, TargetGoneError
from drivetrain_health.faults._kill import kill
from drivetrain_health.faults._privileges import call_libc
from drivetrain_health.faults._target import Held

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NEW_NETWORK = 0x4000_0000  # CLONE_NEWNET
_OWN = Path("/proc/thread-self/ns/net")
_PATIENCE_S = 10.0


class Namespace:
    """A network of its own, at first with nothing in it; safe in any thread.

    Raises:
        MissingPrivilegeError: This process may make none.
    """

    def __init__(self) -> None:
        """Makes it; this thread is in it for a moment."""
        self._descriptor = -1
        with _back_again():
            call_libc("unshare", _NEW_NETWORK)
            self._descriptor = os.open(_OWN, os.O_RDONLY)
        self._inode = os.fstat(self._descriptor).st_ino

    @property
    def path(self) -> str:
        """A file that stands for it, for other processes."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Puts this thread into it while a block runs, with what the block starts."""
        with _back_again():
            call_libc("setns", self._descriptor, _NEW_NETWORK)
            yield

    def configure(self, program: str, lines: Sequence[str]) -> None:
        """Gives `ip` or `tc` some commands, a line each.

        Raises:
            FaultError: One of them failed.
        """
        with self.entered():
            done = subprocess.run(
                [program, "-batch", "-"],
                input="".join(f"{line}\n" for line in lines),
                check=False,
                capture_output=True,
                text=True,
            )
        if done.returncode:
            message = (
                f"`{program}` failed: {done.stderr.strip()}, of {'; '.join(lines)}"
            )
            raise FaultError(message)

    def pids(self) -> list[int]:
        """Returns the processes in it, without this one."""
        names = os.listdir("/proc")  # noqa: PTH208
        pids = [int(name) for name in names if name.isdecimal()]
        return [pid for pid in pids if pid != os.getpid() and self._has(pid)]

    def kill_processes(self) -> None:
        """Kills all processes in it, and those that they make meanwhile.

        Raises:
            FaultError: They outlive it.
        """
        end_s = time.monotonic() + _PATIENCE_S
        while pids := self.pids():
            for pid in pids:
                # Held, its number can no more pass to a process that is elsewhere.
                with suppress(TargetGoneError), Held(pid):
                    if self._has(pid):
                        kill(pid)
            if time.monotonic() > end_s:
                message = f"processes outlive SIGKILL: {pids}"
                raise FaultError(message)

    def _has(self, pid: int) -> bool:
        try:
            return os.stat(f"/proc/{pid}/ns/net").st_ino == self._inode  # noqa: PTH116
        except OSError:
            return False

    def close(self) -> None:
        """Kills what runs in it, and lets go of it."""
        if self._descriptor >= 0:
            try:
                self.kill_processes()
            finally:
                os.close(self._descriptor)
                self._descriptor = -1


@contextmanager
def _back_again() -> Iterator[None]:
    """Brings this thread back to the namespace that it is in, after a block."""
    descriptor = os.open(_OWN, os.O_RDONLY)
    try:
        try:
            yield
        finally:
            call_libc("setns", descriptor, _NEW_NETWORK)
    finally:
        os.close(descriptor)
