"""Work handles of collectives on the engine, and the thread that completes futures."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Work

from drivetrain_comm.backend import _native
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from drivetrain_comm.backend._extension import Ticket
    from drivetrain_comm.backend._torch_backend import TorchTicket


class EngineWork(Work):
    """A collective that the engine carries out.

    Args:
        ticket: What the engine gave.
        result: What its future holds.
        notifier: Tells the future.
        last: Called once when it has ended well, before anybody learns of it.
    """

    def __init__(
        self,
        ticket: Ticket,
        result: list[torch.Tensor],
        notifier: Notifier,
        *,
        last: Callable[[], None] | None = None,
    ) -> None:
        """Starts nothing."""
        super().__init__()
        self._ticket = ticket
        self._result = result
        self._notifier = notifier
        self._future: torch.futures.Future[Any] | None = None
        self._last = last
        self._lock = threading.Lock()
        self._process = os.getpid()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end.

        Args:
            timeout: How long; by default until the time-out of the group.

        Raises:
            DistributedError: It failed on some rank, has not ended in this time, or was
                begun before a fork, in the process that this one was forked from.
        """
        self._require_own_process()
        seconds = timeout.total_seconds() if timeout else 0.0
        if seconds <= 0:
            self._ticket.finish()
            self._complete()
            return True
        error = self._ticket.wait(seconds)
        if error is None:
            message = f"the collective has not ended within {seconds:g} s"
            raise DistributedError(message)
        if error:
            raise DistributedError(error)
        self._complete()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return self._ended() is not None

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._ended() == ""

    def synchronize(self) -> None:
        """Waits for the end."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors."""
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """Returns a future of the result.

        Raises:
            DistributedError: It was begun before a fork; see `wait`.
        """
        self._require_own_process()
        if self._future is None:
            self._future = torch.futures.Future()
            pair = self._future, self._result
            self._notifier.tell(self._ticket, [pair], first=self._complete)
        return self._future

    def _require_own_process(self) -> None:
        # Neither the engine nor the notifier has a thread in the child of a fork.
        if self._process != os.getpid():
            message = "the collective belongs to the process before a fork"
            raise DistributedError(message)

    def _ended(self) -> str | None:
        error = self._ticket.wait(0.0)
        if error == "":
            self._complete()
        return error

    def _complete(self) -> None:
        with self._lock:
            if self._last is not None:
                self._last()
            self._last = None


class Notifier:
    """A thread that completes futures, in the order of their collectives.

    The thread starts with the first one.
    """

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        _notifiers.add(self)

    def tell(
        self,
        ticket: Ticket | TorchTicket,
        futures: Sequence[tuple[torch.futures.Future[Any], object]],
        *,
        first: Callable[[], None] | None = None,
    ) -> None:
        """Completes futures with their values when a collective ends, or its error.

        Args:
            ticket: Of the collective.
            futures: With their values.
            first: Called when it has ended well, before they are completed.
        """

        def finish() -> None:
            try:
                ticket.finish()
                if first is not None:
                    first()
            except Exception as error:  # noqa: BLE001
                # Whatever it is, whoever waits for the futures gets it.
                for future, _ in futures:
                    future.set_exception(error)
            else:
                for future, value in futures:
                    future.set_result(value)

        self.put(finish)

    def put(self, job: Callable[[], None]) -> None:
        """Has the thread do a job, which must not raise, after those before it."""
        self._queue.put(job)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run, args=(self._queue,), name="drivetrain-comm", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Ends the thread, after what is queued."""
        self._queue.put(None)

    def join(self) -> None:
        """Ends the thread, and waits until it has ended."""
        self.close()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_END_S)


_END_S = 5.0
_notifiers: weakref.WeakSet[Notifier] = weakref.WeakSet()


def _join_notifiers() -> None:
    """Ends all threads, so that the interpreter does not end under one in native code."""
    for notifier in list(_notifiers):
        notifier.join()


_native.after_stop.append(_join_notifiers)


def _run(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
