"""Who is whose parent, and what follows from it."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["adopt_orphans", "end_with_parent", "reap_orphans"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Makes this process the parent of those of its descendants that lose theirs.

    Raises:
        OSError: The system cannot do that.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


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


def end_with_parent(parent: int | None = None) -> None:
    """Lets this process be killed when its parent ends.

    Args:
        parent: Who that has to be; this process ends now if it is another one.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before.
    if os.getppid() != (parent or os.getppid()):
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")
