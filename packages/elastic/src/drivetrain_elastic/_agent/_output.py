"""Where the output of workers goes: to files, to the agent's own, or to both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING

from drivetrain_health.diagnosis import read_output
from drivetrain_health.failures import OutputDigest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16
# A failure must not wait for long until a large file is read.
_READ_BYTES = 64 << 20
_QUEUE_BYTES = 8 << 20
_CLOSE_S = 5.0
_FLUSH_S = 0.5
_ROOM_S = 0.01


class Output:
    """Opens what workers write to; used from one event loop.

    Each has `stdout.log` and `stderr.log` in a folder of its own. What it wrote to its
    standard error that speaks of a failure, and the end of it, is kept in any case.

    Args:
        folder: Where the folders are; None for the output of this process.
        tee: Whether lines are shown here as well, with the worker's name before them.
    """

    def __init__(self, folder: str | None, *, tee: bool = False) -> None:
        self._folder = folder
        self._tee = tee
        self._pumps: set[asyncio.Task[None]] = set()
        self._tails: dict[str, _Tail] = {}
        self._logs: list[_Log] = []
        self._shown = {
            "stdout": _Sink(1, "the agent's standard output"),
            "stderr": _Sink(2, "the agent's standard error"),
        }

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[list[int]]:
        """Gives what a worker gets as its standard output and error, while it starts."""
        if self._folder is None:
            # The worker has the agent's own standard output, and this in place of its error.
            tail = self._tails[name] = _Tail()
            opened_here = [os.dup(1), self._pump(tail, self._shown["stderr"], "")]
            try:
                yield opened_here
            finally:
                for descriptor in opened_here:
                    os.close(descriptor)
            return
        folder = Path(self._folder, name)
        folder.mkdir(parents=True, exist_ok=True)
        opened: list[int] = []
        try:
            for stem, shown in self._shown.items():
                log = (folder / f"{stem}.log").open("ab", buffering=0)
                opened.append(self._writer(log, shown, name))
            yield opened
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _writer(self, log: IO[bytes], shown: _Sink, name: str) -> int:
        if not self._tee:
            with log:
                return os.dup(log.fileno())
        self._logs = [one for one in self._logs if not one.is_done()]
        self._logs.append(_Log(log))
        return self._pump(self._logs[-1], shown, name)

    def _pump(self, kept: _Log | _Tail, shown: _Sink, name: str) -> int:
        """Returns where to write what is to be kept, and shown."""
        read_end, write_end = os.pipe()
        pump = asyncio.create_task(_pump(read_end, kept, shown, name))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return write_end

    def tail(self, name: str) -> str:
        """Returns what a worker's standard error says of a failure, and its end.

        Args:
            name: The worker's.
        """
        if self._folder is not None:
            path = Path(self._folder, name, "stderr.log")
            return read_output(path, max_bytes=_READ_BYTES)
        kept = self._tails.get(name)
        return "" if kept is None else kept.text()

    def forget(self, name: str) -> None:
        """Lets go of what is kept of a worker in memory."""
        self._tails.pop(name, None)

    async def close(self) -> None:
        """Waits until all that workers wrote is where it belongs, but not for long."""
        end_s = time.monotonic() + _CLOSE_S
        pumps = set(self._pumps)
        if pumps:
            await asyncio.wait(pumps, timeout=_CLOSE_S)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        places = [*self._logs, *self._shown.values()]
        for place in places:
            place.close()
        end_s = max(end_s, time.monotonic() + _FLUSH_S)
        while time.monotonic() < end_s and not all(one.is_done() for one in places):
            await asyncio.sleep(_ROOM_S)


class _Sink:
    """One of the places where output goes; that it fails is no worker's affair.

    A thread writes, since whoever reads a terminal or a pipe may stop to; what does not fit
    into the queue meanwhile is lost.

    Args:
        descriptor: Where it writes to.
        name: For people.
        done: Called, by the thread, when it is closed and all is written.
    """

    def __init__(
        self, descriptor: int, name: str, done: Callable[[], None] | None = None
    ) -> None:
        self._descriptor = descriptor
        self._name = name
        self._done = done
        self._chunks: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_lost = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._has_failed = False

    def has_room(self) -> bool:
        """Whether a chunk would be taken now."""
        with self._change:
            return self._num_bytes < _QUEUE_BYTES

    def write(self, data: bytes) -> None:
        """Takes all of it, to be written soon; or loses it, and says so later."""
        with self._change:
            if self._is_closed or self._num_bytes >= _QUEUE_BYTES:
                self._num_lost += len(data)
                return
            self._chunks.append(data)
            self._num_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="drivetrain-output", daemon=True
                )
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """Ends it, once all is written; does not wait."""
        with self._change:
            if self._is_closed:
                return
            self._is_closed = True
            self._change.notify()
            if self._thread is None and self._done is not None:
                self._done()

    def is_done(self) -> bool:
        """Whether it is closed, and all is written."""
        thread = self._thread
        return self._is_closed and (thread is None or not thread.is_alive())

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._chunks or self._is_closed)
                if not self._chunks:
                    break
                data = self._chunks.popleft()
            self._write_all(data)
            with self._change:
                self._num_bytes -= len(data)
                num_lost, self._num_lost = self._num_lost, 0
            if num_lost:
                logger.warning(
                    "%d bytes of the output of workers are lost: %s was not read",
                    *(num_lost, self._name),
                )
        if self._done is not None:
            self._done()

    def _write_all(self, data: bytes) -> None:
        """Writes all of it; or loses it, and says so the first time."""
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:
                    # Somebody has made it so for all that share it.
                    select.select([], [self._descriptor], [])
        except (OSError, ValueError) as error:
            # The disk may have room again, so that the next piece is tried.
            if not self._has_failed:
                self._has_failed = True
                logger.warning("output of workers is lost: %s: %s", self._name, error)


class _Log(_Sink):
    """Keeps output in a file.

    Args:
        file: It is closed at the end.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file.fileno(), str(file.name), file.close)


class _Tail(OutputDigest):
    """Keeps in memory what output says of a failure, and its end."""

    def has_room(self) -> bool:
        """Whether a chunk would be taken now: it always is."""
        return True

    def close(self) -> None:
        """Does nothing: it is kept until somebody has read it."""


async def _pump(read_end: int, kept: _Log | _Tail, shown: _Sink, name: str) -> None:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    source = os.fdopen(read_end, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), source
    )
    begins_line, prefix = True, f"[{name}] ".encode() if name else b""
    with contextlib.closing(kept), contextlib.closing(transport):
        while chunk := await reader.read(_CHUNK_BYTES):
            while not kept.has_room():
                # A file is to be whole: the worker waits for a slow disk, as it would
                # if it wrote there itself.
                await asyncio.sleep(_ROOM_S)
            kept.write(chunk)
            # Between "\r" a line is written over, as by a progress bar: it is one.
            text = chunk[:-1].replace(b"\n", b"\n" + prefix) + chunk[-1:]
            shown.write(prefix + text if begins_line else text)
            begins_line = chunk.endswith(b"\n")
