"""Work handles of collectives on the engine, and the threads that complete futures."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from concurrent import futures
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._C._distributed_c10d import Work
from torch.autograd import profiler

from drivetrain_comm.backend import _native
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from drivetrain_comm.backend._extension import Ticket
    from drivetrain_comm.backend._torch_backend import Ending


class LaterTicket:
    """The ticket of a collective that begins once the ranks have met.

    Args:
        begin: Returns the ticket of the engine.
    """

    def __init__(self, begin: Callable[[], Ticket | Ending]) -> None:
        """Begins nothing."""
        self._begin = begin
        self._begun: Future[Ticket | Ending] = Future()

    def begin(self) -> None:
        """Begins; whoever waits is told of what is raised."""
        try:
            self._begun.set_result(self._begin())
        except Exception as error:  # noqa: BLE001
            self.fail(error)
        # It refers to the group, which work that is kept is not to hold.
        del self._begin

    def fail(self, error: Exception) -> None:
        """Ends it with an error, without a beginning."""
        self._begun.set_exception(error)

    def wait(self, timeout_s: float) -> str | None:
        """Returns None if it has not ended, an empty string, or why it failed."""
        until_s = time.monotonic() + timeout_s
        if not futures.wait([self._begun], timeout_s).done:
            return None
        if error := self._begun.exception():
            return str(error)
        return self._begun.result().wait(max(0.0, until_s - time.monotonic()))

    def finish(self) -> None:
        """Waits for the end, and raises why it failed."""
        self._begun.result().finish()


AnyTicket: TypeAlias = "Ticket | Ending | LaterTicket"


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
        ticket: AnyTicket,
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
        else:
            error = self._ticket.wait(seconds)
            if error is None:
                error = f"the collective has not ended within {seconds:g} s"
            if error:
                raise DistributedError(error)
        self._complete()
        if self._future is not None:
            self._future.wait()
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

    def get_future(self, shown_as: str = "") -> torch.futures.Future[Any]:
        """Returns a future of the result.

        Args:
            shown_as: The backend by whose name the profiler sees it until its end; only
                the first call for a future has it seen.

        Raises:
            DistributedError: It was begun before a fork; see `wait`.
        """
        self._require_own_process()
        if self._future is None:
            self._future = torch.futures.Future()
            ends: list[Any] = [(self._future, self._result)]
            if shown_as:
                # Another future, which ends before: whoever waits may end the profiler.
                ends.insert(0, (torch.futures.Future(), None))
                show(shown_as, ends[0][0])
            elif self._ticket.wait(0.0) == "":
                # DDP takes the value of what it has waited for.
                self._complete()
                self._future.set_result(self._result)
                return self._future
            self._notifier.tell(self._ticket, ends, first=self._complete)
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
            if self._future is not None and not self._future.done():
                return None
        return error

    def _complete(self) -> None:
        with self._lock:
            if self._last is not None:
                self._last()
            self._last = None


def _nothing() -> None: ...


def show(backend: str, future: torch.futures.Future[Any]) -> None:
    """Has the profiler, if it runs, see an all-reduce from now to the end of its future.

    By the name of the backend below: tools look for it.
    """
    if profiler._is_profiler_enabled:
        record = profiler.record_function(f"{backend}:all_reduce")
        record.__enter__()  # type: ignore[no-untyped-call]
        record._call_end_callbacks_on_future(future)


class Notifier:
    """Threads that complete futures, in the order of their collectives.

    One of them waits for the collective that ends next. What hangs on a future may wait
    for a later one, as the hook of PowerSGD does: another thread waits meanwhile.
    """

    def __init__(self) -> None:
        """Starts none yet."""
        self._queue: queue.SimpleQueue[
            tuple[Callable[[], None], Callable[[], None]] | None
        ] = queue.SimpleQueue()
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self._num_busy = 0
        _notifiers.add(self)

    def tell(
        self,
        ticket: AnyTicket,
        results: Sequence[tuple[torch.futures.Future[Any], object]],
        *,
        first: Callable[[], None] | None = None,
    ) -> None:
        """Completes futures with their values when a collective ends, or its error.

        Args:
            ticket: Of the collective.
            results: Futures, with their values.
            first: Called when it has ended well, before they are completed.
        """
        failed: list[Exception] = []

        def wait() -> None:
            try:
                ticket.finish()
                if first is not None:
                    first()
            except Exception as error:  # noqa: BLE001
                # Whatever it is, whoever waits for the futures gets it.
                failed.append(error)

        def complete() -> None:
            for future, value in results:
                if failed:
                    future.set_exception(failed[0])
                else:
                    future.set_result(value)

        self.put(wait, complete)

    def put(self, job: Callable[[], None], then: Callable[[], None] = _nothing) -> None:
        """Has a thread do a job, after those before it, and then what may take its time.

        Neither may raise.
        """
        self._queue.put((job, then))
        if not self._threads:
            self._count(0)

    def close(self) -> None:
        """Ends the threads, after what is queued."""
        self._queue.put(None)

    def join(self) -> None:
        """Ends the threads, and waits until they have ended."""
        self.close()
        for thread in self._threads:
            thread.join(_END_S)

    def _run(self) -> None:
        while self._do_next():
            self._count(-1)

    def _do_next(self) -> bool:
        """Does a job, of which nothing is held while the next is waited for."""
        with self._turn:
            pair = self._queue.get()
            if pair is None:
                # For the other threads.
                self._queue.put(None)
                return False
            pair[0]()
            self._count(1)
        pair[1]()
        return True

    def _count(self, change: int) -> None:
        """Takes note of threads that may take their time, and that one is left."""
        with self._lock:
            self._num_busy += change
            if self._num_busy < len(self._threads):
                return
            thread = threading.Thread(
                target=self._run, name="drivetrain-comm", daemon=True
            )
            self._threads.append(thread)
            thread.start()


_END_S = 5.0
_notifiers: weakref.WeakSet[Notifier] = weakref.WeakSet()


def _join_notifiers() -> None:
    """Ends all threads, so that the interpreter does not end under one in native code."""
    for notifier in list(_notifiers):
        notifier.join()


_native.after_stop.append(_join_notifiers)
