"""Adopted processes: descendants of the agent whose parents have ended."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from drivetrain_core.processes import children

if TYPE_CHECKING:
    from collections.abc import Container


def reap_orphans(own: Container[int]) -> None:
    """Lets go of adopted processes that have ended.

    Args:
        own: Children that somebody else here waits for.
    """
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        # One that is waited for hides those behind it, but not for long.
        if found is None or found.si_pid in own:
            return
        os.waitpid(found.si_pid, 0)


def kill_adopted(spared: Container[int]) -> int:
    """Kills children that others have started, and lets go of those that have ended.

    Children in this process's own session are its own: those that it has adopted come
    from workers, of which each has begun a session.

    Args:
        spared: Children that others here started, or wait for.

    Returns:
        How many were found; what these had started is there at the next call.
    """
    found = 0
    for pid in children():
        if pid in spared:
            continue
        # A child keeps its number until it is waited for, here.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if os.getsid(pid) != os.getsid(0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
                found += 1
    return found
