"""A process that is too slow: it gets a part of a core, and no more.

It is stopped and let go on by signals, many times a second. A quota of a control group
would do the same in the kernel, but needs root or a delegated group, and moves the process
out of the group that it is in; signals work on any process of the same user, and nothing
is left of them. What a process has used is read from its own CPU clock, so that one that
waits is not stopped, and one with many threads is stopped all the longer.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_health.faults._errors import TargetGoneError
from drivetrain_health.faults._target import hold

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drivetrain_health.faults._target import Held, Target

_TICK_S = 0.01
# Who has slept may catch up on so much.
_CREDIT_S = 0.1


@contextmanager
def slow(target: Target, share: float, *, tree: bool = False) -> Iterator[None]:
    """Gives a process a share of a core while a block runs, over any tenth of a second.

    If this process is killed in the block, the other one may stay stopped.

    Args:
        target: The process.
        share: The CPU time that it gets in a second, in seconds, all threads together.
        tree: Whether it and all that descend from it now get the share together.

    Raises:
        ProgramError: The share is not positive, no process can be meant, or it is this
            one.
        TargetGoneError: It has ended.
        MissingPrivilegeError: It belongs to another user.

    Example:
        >>> import subprocess, sys, time
        >>> worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        >>> with slow(worker, share=0.2):
        ...     time.sleep(0.1)  # the others have to wait for it
        >>> worker.kill()
        >>> worker.wait()
        -9
    """
    if not share > 0:
        message = f"the share of a core must be over 0, got {share}"
        raise ProgramError(message)
    with hold(target, tree=tree) as found:
        found[0].signal(0)
        brake = _Brake(found, share)
        brake.start()
        try:
            yield
        finally:
            brake.release()


def debt_after(debt_s: float, used_s: float, elapsed_s: float, share: float) -> float:
    """Returns how much CPU time was used too much; it is stopped while that is over 0.

    Args:
        debt_s: What it was before.
        used_s: What was used since then.
        elapsed_s: How long that took.
        share: What may be used in a second.

    Example:
        >>> debt_after(0.0, used_s=0.5, elapsed_s=1.0, share=0.25)
        0.25
    """
    return max(debt_s + used_s - share * elapsed_s, -share * _CREDIT_S)


class _Brake(threading.Thread):
    """Stops processes and lets them go on, until it is released."""

    def __init__(self, processes: Sequence[Held], share: float) -> None:
        super().__init__(name="drivetrain-slow", daemon=True)
        self._processes = processes
        self._share = share
        self._released = threading.Event()

    def run(self) -> None:
        """Measures and decides, every tick."""
        used_s = {one: one.cpu_time_s() for one in self._processes}
        debt_s, then_s, is_stopped = 0.0, time.monotonic(), False
        while not self._released.wait(_TICK_S):
            now_s, spent_s = time.monotonic(), 0.0
            for one, before_s in used_s.items():
                after_s = one.cpu_time_s()
                if before_s is not None and after_s is not None:
                    spent_s += after_s - before_s
                used_s[one] = after_s
            if all(value is None for value in used_s.values()):
                return
            debt_s = debt_after(debt_s, spent_s, now_s - then_s, self._share)
            then_s = now_s
            if (debt_s > 0) is not is_stopped:
                is_stopped = not is_stopped
                self._set(is_stopped)

    def _set(self, is_stopped: bool) -> None:
        for one in self._processes:
            if not is_stopped:
                one.go_on()
                continue
            try:
                one.signal(signal.SIGSTOP)
            except TargetGoneError:
                continue  # there may be others

    def release(self) -> None:
        """Lets all go on, for good."""
        self._released.set()
        self.join()
        for one in self._processes:
            one.go_on()
