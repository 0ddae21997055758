"""Traces: what a program asked of an allocator, and the files that keep them."""

from __future__ import annotations

import lzma
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_memory._errors import MemoryUseError, TraceError

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

__all__ = ["EVENT", "Builder", "Operation", "Trace"]

EVENT = np.dtype(
    [
        ("operation", "u1"),
        ("stream", "u1"),
        ("pool", "u1"),
        ("scales", "u1"),
        ("id", "<u4"),
        ("size", "<u8"),
    ]
)
"""One event; `TraceEvent` in `trace.hpp` has the same layout.

`scales` says whether the size is proportional to the batch.
"""

_MAGIC = b"DTMTRACE"
_VERSION = 1
_HEADER = struct.Struct("<8sHHIQI")
_UNIT = 512
# More than any trace that fits a machine's memory; a broken header asks for more.
_MOST_EVENTS = 2**30


class Operation(IntEnum):
    """What an event is."""

    ALLOCATE = 0
    FREE = 1
    RECORD_STREAM = 2
    STEP = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Events in their order.

    Args:
        name: What was recorded.
        events: An array of dtype `EVENT`.
        batch: What `scales` of the events is relative to; 0 where that is not known.

    Example:
        >>> from drivetrain_memory.trace import Builder
        >>> builder = Builder("two")
        >>> first = builder.allocate(1000)
        >>> builder.free(first)
        >>> trace = builder.trace()
        >>> len(trace.events), trace.peak_live_bytes
        (2, 1024)
    """

    name: str
    events: NDArray[np.void]
    batch: int = 0

    @property
    def peak_live_bytes(self) -> int:
        """The most that was live at a time, each block rounded to 512 bytes."""
        events = self.events[self.events["operation"] <= Operation.FREE]
        rounded = -(-events["size"].astype(np.int64) // _UNIT) * _UNIT
        allocated = events["operation"] == Operation.ALLOCATE
        # By id, and in their order: a block lies right before what frees it.
        order = np.argsort(events["id"], kind="stable")
        before = np.zeros(len(events), np.int64)
        before[order[1:]] = rounded[order[:-1]]
        change = np.where(allocated, rounded, -before)
        return int(np.cumsum(change).max(initial=0))

    @property
    def num_steps(self) -> int:
        """How many training steps it holds."""
        return int((self.events["operation"] == Operation.STEP).sum())

    def at_batch(self, batch: int) -> Trace:
        """Returns the trace with what depends on the batch in another size.

        Args:
            batch: At least 1.

        Raises:
            MemoryUseError: The batch is none, or that of the trace is not known.
        """
        if batch < 1:
            message = f"a batch is at least 1, not {batch}"
            raise MemoryUseError(message)
        if self.batch == 0:
            message = f"the batch of {self.name} is not known"
            raise MemoryUseError(message)
        events = self.events.copy()
        chosen = events["scales"] != 0
        sizes = events["size"][chosen].astype(object) * batch
        events["size"][chosen] = -(-sizes // self.batch)
        return Trace(name=self.name, events=events, batch=batch)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a compressed file."""
        name = self.name.encode()
        raw = self.events.astype(EVENT).tobytes()
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            len(name),
            self.batch,
            len(self.events),
            zlib.crc32(raw),
        )
        packed = lzma.compress(raw, preset=9)
        Path(path).write_bytes(header + name + packed)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Reads a file.

        Raises:
            TraceError: It is no trace, or not a whole one.
        """
        data = Path(path).read_bytes()
        try:
            magic, version, length, batch, count, checksum = _HEADER.unpack_from(data)
        except struct.error:
            raise TraceError(path, "it is too short for a header") from None
        if magic != _MAGIC:
            raise TraceError(path, "it does not begin as a trace does")
        if version != _VERSION:
            raise TraceError(path, f"it has version {version}, and {_VERSION} is known")
        if count > _MOST_EVENTS:
            raise TraceError(path, f"it claims {count} events")
        name = data[_HEADER.size : _HEADER.size + length]
        decompressor = lzma.LZMADecompressor()
        size = count * EVENT.itemsize
        try:
            # One byte more would show that the file holds more than it says.
            raw = decompressor.decompress(
                data[_HEADER.size + length :], max_length=size + 1
            )
            title = name.decode()
        except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
            raise TraceError(path, f"it is damaged: {error}") from None
        whole = decompressor.eof and len(raw) == size
        if not whole or zlib.crc32(raw) != checksum:
            raise TraceError(path, "it is damaged: its checksum differs")
        return cls(name=title, events=np.frombuffer(raw, EVENT), batch=batch)


class Builder:
    """Writes a trace event by event.

    Args:
        name: Of the trace.
    """

    def __init__(self, name: str) -> None:
        """Begins with no event."""
        self._name = name
        self._events: list[tuple[int, int, int, int, int, int]] = []
        self._next = 0

    def allocate(self, size: int, stream: int = 0) -> int:
        """Returns the id of a new block of `size` bytes."""
        name = self._next
        self._next += 1
        self._events.append((Operation.ALLOCATE, stream, 0, 0, name, size))
        return name

    def free(self, name: int) -> None:
        """Frees a block."""
        self._events.append((Operation.FREE, 0, 0, 0, name, 0))

    def record_stream(self, name: int, stream: int) -> None:
        """Says that a block is used on another stream."""
        self._events.append((Operation.RECORD_STREAM, stream, 0, 0, name, 0))

    def step(self) -> None:
        """Begins a training step."""
        self._events.append((Operation.STEP, 0, 0, 0, 0, 0))

    def trace(self) -> Trace:
        """Returns what was written."""
        return Trace(name=self._name, events=np.array(self._events, EVENT))
