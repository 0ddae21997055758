"""A process that dies."""

from __future__ import annotations

import signal as signals
from contextlib import suppress

from drivetrain_health.faults._errors import FaultError, TargetGoneError
from drivetrain_health.faults._target import Target, frozen, hold

_PATIENCE_S = 10.0


def kill(target: Target, signal: int = signals.SIGKILL, *, tree: bool = False) -> None:
    """Sends a process a signal that ends it; after SIGKILL, it has ended on return.

    Args:
        target: The process.
        signal: The signal.
        tree: Whether all that descend from it get the signal too. They are stopped
            first, so that none of them makes a new one meanwhile. One whose parent has
            ended before is not found.

    Raises:
        ProgramError: No process can be meant, or it is this one.
        TargetGoneError: It has ended already.
        MissingPrivilegeError: It belongs to another user.
        FaultError: SIGKILL has not ended it, for the kernel is at work for it.

    Example:
        >>> import subprocess
        >>> worker = subprocess.Popen(["sleep", "60"])
        >>> kill(worker)
        >>> worker.wait()
        -9
    """
    with frozen(target, tree=True) if tree else hold(target) as found:
        # Children first: whoever sees its child die has the signal itself by then.
        for one in reversed(found[1:]):
            with suppress(TargetGoneError):
                one.signal(signal)
        found[0].signal(signal)
        if signal != signals.SIGKILL:
            return
        for one in found:
            if not one.wait(_PATIENCE_S):
                message = f"process {one.pid} outlives SIGKILL by {_PATIENCE_S:g} s"
                raise FaultError(message)
