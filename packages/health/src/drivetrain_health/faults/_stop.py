"""A process that hangs: it is there, and does nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from drivetrain_health.faults._target import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_health.faults._target import Target


@contextmanager
def stop(target: Target, *, tree: bool = False) -> Iterator[None]:
    """Stops a process while a block runs; it goes on at the end, if it still lives.

    Its connections stay open, as those of a process do that hangs. It stands still when
    the block begins. If this process is killed in the block, it stays stopped.

    Args:
        target: The process.
        tree: Whether all that descend from it are stopped too.

    Raises:
        ProgramError: No process can be meant, or it is this one.
        TargetGoneError: It has ended.
        MissingPrivilegeError: It belongs to another user.
        FaultError: It does not stop, for the kernel is at work for it.

    Example:
        >>> import subprocess
        >>> worker = subprocess.Popen(["sleep", "3600"])
        >>> with stop(worker):
        ...     print(worker.poll())
        None
        >>> worker.kill()
        >>> worker.wait()
        -9
    """
    with frozen(target, tree=tree):
        yield
