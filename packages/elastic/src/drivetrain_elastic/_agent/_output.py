"""Where the output of workers goes: to files, to the agent's own, or to both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

from drivetrain_elastic.diagnosis import read_output_tail

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Output"]

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16
_TAIL_BYTES = 1 << 16


class Output:
    """Opens what workers write to; used from one event loop.

    Each has `stdout.log` and `stderr.log` in a folder of its own. The end of what it wrote
    to its standard error is kept in any case, since it may say why the worker has failed.

    Args:
        folder: Where the folders are; None for the output of this process.
        tee: Whether lines are shown here as well, with the worker's name before them.
    """

    def __init__(self, folder: str | None, *, tee: bool = False) -> None:
        self._folder = folder
        self._tee = tee
        self._pumps: set[asyncio.Task[None]] = set()
        self._tails: dict[str, _Tail] = {}
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
        return self._pump(_Log(log), shown, name)

    def _pump(self, kept: _Log | _Tail, shown: _Sink, name: str) -> int:
        """Returns where to write what is to be kept, and shown."""
        read_end, write_end = os.pipe()
        pump = asyncio.create_task(_pump(read_end, kept, shown, name))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return write_end

    def tail(self, name: str) -> str:
        """Returns the end of what a worker wrote to its standard error.

        Args:
            name: The worker's.
        """
        if self._folder is not None:
            return read_output_tail(Path(self._folder, name, "stderr.log"))
        kept = self._tails.get(name)
        return "" if kept is None else kept.text()

    def forget(self, name: str) -> None:
        """Lets go of what is kept of a worker in memory."""
        self._tails.pop(name, None)

    async def close(self) -> None:
        """Waits until all that workers wrote is where it belongs."""
        if self._pumps:
            await asyncio.wait(self._pumps, timeout=5.0)
            for pump in self._pumps:
                pump.cancel()


class _Sink:
    """One of the places where output goes; that it fails is no worker's affair.

    Args:
        descriptor: Where it writes to.
        name: For people.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._has_failed = False

    def write(self, data: bytes) -> None:
        """Writes all of it; or loses it, and says so the first time."""
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            # The disk may have room again, so that the next piece is tried.
            if not self._has_failed:
                self._has_failed = True
                logger.warning("output of workers is lost: %s: %s", self._name, error)


class _Log:
    """Keeps output in a file.

    Args:
        file: It is closed at the end.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sink = _Sink(file.fileno(), str(file.name))

    def write(self, data: bytes) -> None:
        """Writes all of it; or loses it, and says so the first time."""
        self._sink.write(data)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class _Tail:
    """Keeps the end of output in memory."""

    def __init__(self) -> None:
        self._data = b""

    def write(self, data: bytes) -> None:
        """Keeps the end of it, with what came before."""
        self._data = (self._data + data)[-_TAIL_BYTES:]

    def text(self) -> str:
        """Returns what is kept."""
        return self._data.decode(errors="replace")

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
            kept.write(chunk)
            # Between "\r" a line is written over, as by a progress bar: it is one.
            text = chunk[:-1].replace(b"\n", b"\n" + prefix) + chunk[-1:]
            shown.write(prefix + text if begins_line else text)
            begins_line = chunk.endswith(b"\n")
