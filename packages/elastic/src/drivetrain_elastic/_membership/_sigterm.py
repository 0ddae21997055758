"""SIGTERM handler of a worker, for when all processes of its node are told to end.

Some schedulers send SIGTERM to each of them. A worker that ended at once would lose its
step, and one whose loaders of data have ended fails. So it tells its agent, which lets it
leave at the end of a step; loaders end with the worker.

A `DataLoader` gives its processes a handler of its own, by which they end. Those that are
forked get another one here, which heeds the worker only.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import torch.utils.data._utils.signal_handling

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class HeldSigterm:
    """Takes SIGTERM in place of ending, for a process and those that it forks.

    It does so only in the main thread, and where the script has no handler of its own. A
    process that was forked ignores the signal as long as this one lives, and a loader of
    data until this one ends.

    Args:
        heard: Called for each signal, in the main thread.
    """

    def __init__(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._pid = os.getpid()
        is_main = threading.current_thread() is threading.main_thread()
        self._is_set = is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if self._is_set:
            signal.signal(signal.SIGTERM, self._handle)
            _shield_loaders()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if os.getpid() == self._pid:
            self._heard()
        elif os.getppid() != self._pid:
            _end()

    def end(self) -> None:
        """Ends this process as SIGTERM does, from any thread.

        Nothing happens if the script has a handler of its own: it is asked by a signal.
        """
        if self._is_set and signal.getsignal(signal.SIGTERM) == self._handle:
            _end()


def _shield_loaders() -> None:
    """Has loaders that are forked from now on heed SIGTERM only as this process ends."""
    handlers: Any = torch.utils.data._utils.signal_handling
    set_handlers = handlers._set_worker_signal_handlers
    if getattr(set_handlers, "is_shield", False):
        return
    # Shared with what is forked.
    is_ending = mmap.mmap(-1, 1)
    parent = os.getpid()

    def set_ending() -> None:
        if os.getpid() == parent:
            is_ending[0] = 1

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if is_ending[0] or os.getppid() != parent:
            os._exit(0)

    def shield() -> None:
        set_handlers()
        signal.signal(signal.SIGTERM, handle)

    shield.is_shield = True  # type: ignore[attr-defined]
    handlers._set_worker_signal_handlers = shield
    # Before multiprocessing ends its children by the same signal, and waits for them.
    atexit.register(set_ending)


def _end() -> None:
    # Python allows it in the main thread only, which may be waiting for a collective.
    ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)
    os.kill(os.getpid(), signal.SIGTERM)
