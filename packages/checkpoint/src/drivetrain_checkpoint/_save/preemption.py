"""Preemption: a signal that announces it brings what is in memory to storage."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint._daemon.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from drivetrain_checkpoint._daemon.settings import Settings


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
    settings: Settings,
    signals: Sequence[signal.Signals] | None,
    grace_s: float,
    await_copy: Callable[[float], None],
    *,
    then_exit: bool,
) -> Iterator[PreemptNotice]:
    """Watches for signals; see `Checkpointer.on_preempt`."""
    notice = PreemptNotice()

    def persist() -> None:
        # A client of its own: the trainer may be in the midst of a conversation.
        client = Client(settings)
        with contextlib.closing(client):
            assert notice.deadline_s is not None
            await_copy(max(0.0, notice.deadline_s - time.monotonic()))
            left = notice.deadline_s - time.monotonic()
            question = {"op": "settle", "timeout_s": max(0.0, left)}
            notice.is_durable = client.ask(question)["durable"]

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
            raise SystemExit(128 + number)

    chosen = [signal.SIGTERM] if signals is None else list(signals)
    before = {}
    try:
        for number in chosen:
            before[number] = signal.signal(number, handle)
        yield notice
    finally:
        for number, old in before.items():
            signal.signal(number, old)
