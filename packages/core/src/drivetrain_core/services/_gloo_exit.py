"""Gloo at the exit of the interpreter: its threads let go of finished work first.

A thread of Gloo drops the work that it has finished after those who waited for it go
on, and work that was begun in a backward pass holds Python objects. Where the
interpreter has begun to end by then, up to Python 3.13, dropping them ends the thread in
the middle of C++: "terminate called without an active exception", and a training that
was done counts as failed. Destroying the group does not help, as modules still hold it
(pytorch/pytorch#179291).
"""

from __future__ import annotations

import atexit
import contextlib
import time
from pathlib import Path

_THREADS = "(pt_gloo_runloop)"
_LIMIT_S = 5.0
_LOOKS = 3
"""Looks in a row at which no thread runs: one of them may wait for the interpreter."""


def wait_for_gloo_at_exit() -> None:
    """Lets the exit of this process wait until the threads of Gloo have nothing to do."""
    atexit.unregister(_wait)  # once is enough
    atexit.register(_wait)


def _wait() -> None:
    looks, deadline = 0, time.monotonic() + _LIMIT_S
    while looks < _LOOKS and (states := _states()) and time.monotonic() < deadline:
        looks = looks + 1 if states == {"S"} else 0
        time.sleep(0.001)


def _states() -> set[str]:
    """Returns the states of the threads of Gloo, as Linux calls them."""
    found = set()
    for stat in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            _, name, state, *_ = stat.read_text().split(" ", 3)
            if name == _THREADS:
                found.add(state)
    return found
