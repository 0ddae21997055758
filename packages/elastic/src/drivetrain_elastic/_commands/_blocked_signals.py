"""Blocked signals: those that end a process wait until it asks for them."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """Has SIGTERM and SIGINT wait for `is_ended`, in this thread and those it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        # One that came too late to be asked for has nothing left to end.
        while (new := _ENDING - before) and is_ended(0, new):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_ended(timeout_s: float, signals: Collection[signal.Signals] = _ENDING) -> bool:
    """Returns whether one of the blocked signals has come, or comes in a time.

    Args:
        timeout_s: How long to wait.
        signals: Which ones.
    """
    found = signal.sigtimedwait(signals, timeout_s)
    # A process that was paused meanwhile gets a result that says nothing.
    return found is not None and found.si_signo in signals
