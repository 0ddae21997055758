"""Preemption: a signal that announces it brings what is in memory to storage."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

logger = logging.getLogger(__name__)


class PreemptNotice(threading.Event):
    """Set when a signal has come.

    Attributes:
        signal: Which one; None before.
        deadline_s: When the time is up, as `time.monotonic()` counts; None before.
        is_durable: Whether all that was in memory then is on storage; None before.
    """

    signal: signal.Signals | None = None
    deadline_s: float | None = None
    is_durable: bool | None = None


@contextlib.contextmanager
def preempt_notice(
    signals: Sequence[signal.Signals] | None,
    grace_s: float,
    settle: Callable[[float], bool],
    *,
    then_exit: bool,
) -> Iterator[PreemptNotice]:
    """Watches for signals; see `Checkpointer.on_preempt`."""
    notice = PreemptNotice()

    def persist() -> None:
        assert notice.deadline_s is not None
        notice.is_durable = settle(notice.deadline_s)

    owner = os.getpid()

    def handle(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked child, whose end is its own affair
            raise SystemExit(128 + number)
        notice.signal = signal.Signals(number)
        notice.deadline_s = time.monotonic() + grace_s
        notice.set()
        worker = threading.Thread(target=persist, daemon=True)
        worker.start()
        if then_exit:
            worker.join(grace_s)
            if not notice.is_durable:
                logger.error("what lies in memory is not all on storage")
            raise SystemExit(128 + number if notice.is_durable else 1)

    chosen = [signal.SIGTERM] if signals is None else list(signals)
    before = {}
    try:
        for number in chosen:
            before[number] = signal.signal(number, handle)
        yield notice
    finally:
        for number, old in before.items():
            signal.signal(number, old)
