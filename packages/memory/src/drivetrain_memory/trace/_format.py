"""Traces: what a program asked of an allocator, and the files that keep them."""

from __future__ import annotations

import lzma
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain_memory._errors import MemoryUseError, TraceError
from drivetrain_memory._limits import MOST_BYTES, require_integer

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

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
_MOST_EVENTS = 2**27
_MOST_NAME_BYTES = 2**16 - 1
_MOST_FIELD = 2**32 - 1
# What is unpacked at a time.
_PIECE_BYTES = 2**24

MOST_BATCH = 2**31
"""The largest batch of which there is a trace."""


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
        name: What was recorded, at most 65535 bytes in UTF-8.
        events: A one-dimensional array of dtype `EVENT`, with sizes of at most 1 PiB;
            copied where it is not contiguous.
        batch: What `scales` of the events is relative to; 0 where that is not known.

    Raises:
        MemoryUseError: One of them is something else.

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

    def __post_init__(self) -> None:
        """Checks what the library reads as it lies in memory."""
        _require_name(self.name)
        require_integer("the batch of a trace", self.batch, 0, _MOST_FIELD)
        events: Any = self.events
        if not isinstance(events, np.ndarray) or events.dtype != EVENT:
            kind = getattr(events, "dtype", type(events).__name__)
            message = f"the events of a trace are an array of dtype EVENT, not {kind}"
            raise MemoryUseError(message)
        if events.ndim != 1:
            message = f"the events of a trace have one dimension, not {events.ndim}"
            raise MemoryUseError(message)
        if (events["size"] > MOST_BYTES).any():
            at = int(np.argmax(events["size"]))
            message = (
                f"event {at} has {events['size'][at]} bytes; a block has at most "
                f"{MOST_BYTES}, which is 1 PiB"
            )
            raise MemoryUseError(message)
        object.__setattr__(self, "events", np.ascontiguousarray(events))

    @property
    def scales_with_batch(self) -> bool:
        """Whether the batch is known, and an allocated block grows with it."""
        grows = self.events["scales"] != 0
        grows &= self.events["operation"] == Operation.ALLOCATE
        grows &= self.events["size"] > 0
        return self.batch > 0 and bool(grows.any())

    @property
    def most_batch(self) -> int:
        """The largest batch that `at_batch` takes."""
        sizes = self.events["size"][self.events["scales"] != 0]
        most = int(sizes.max(initial=1)) or 1
        return min(MOST_BATCH, MOST_BYTES * self.batch // most)

    @property
    def peak_live_bytes(self) -> int:
        """The most that was live at a time, each block rounded to 512 bytes."""
        return int(self.live_bytes().max(initial=0))

    def live_bytes(self) -> NDArray[np.int64]:
        """Returns what is live after each allocation and free, in their order."""
        events = self.events[self.events["operation"] <= Operation.FREE]
        rounded = -(-events["size"].astype(np.int64) // _UNIT) * _UNIT
        allocated = events["operation"] == Operation.ALLOCATE
        # By id, and in their order: a block lies right before what frees it.
        order = np.argsort(events["id"], kind="stable")
        before = np.zeros(len(events), np.int64)
        before[order[1:]] = rounded[order[:-1]]
        change = np.where(allocated, rounded, -before)
        return np.cumsum(change)

    @property
    def num_steps(self) -> int:
        """How many training steps it holds."""
        return int((self.events["operation"] == Operation.STEP).sum())

    def at_batch(self, batch: int) -> Trace:
        """Returns the trace with what depends on the batch in another size.

        Args:
            batch: From 1 to 2**31.

        Raises:
            MemoryUseError: The batch is no such number, that of the trace is not known,
                or a block would have more than 1 PiB.
        """
        require_integer("a batch", batch, 1, MOST_BATCH)
        # Of NumPy's own integers, products would wrap.
        batch = int(batch)
        if self.batch == 0:
            message = f"the batch of {self.name} is not known"
            raise MemoryUseError(message)
        events = self.events.copy()
        chosen = events["scales"] != 0
        sizes = events["size"][chosen].astype(object) * batch
        scaled = -(-sizes // self.batch)
        # What does not fit the field is refused as what is too large.
        events["size"][chosen] = np.minimum(scaled, MOST_BYTES + 1)
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
        size = count * EVENT.itemsize
        try:
            raw = _unpacked(data[_HEADER.size + length :], size)
            title = name.decode()
        except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
            raise TraceError(path, f"it is damaged: {error}") from None
        except MemoryError:
            because = f"its {count} events do not fit this machine's memory"
            raise TraceError(path, because) from None
        if raw is None or zlib.crc32(raw) != checksum:
            raise TraceError(path, "it is damaged: its checksum differs")
        try:
            return cls(name=title, events=np.frombuffer(raw, EVENT), batch=batch)
        except MemoryUseError as error:
            raise TraceError(path, f"it is damaged: {error}") from None


def _require_name(name: object) -> None:
    if not isinstance(name, str):
        message = f"the name of a trace is text, not {name!r}"
        raise MemoryUseError(message)
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        message = f"the name of a trace is text that UTF-8 can hold, not {name!r}"
        raise MemoryUseError(message) from None
    if length > _MOST_NAME_BYTES:
        message = (
            f"the name of a trace has at most {_MOST_NAME_BYTES} bytes in UTF-8, "
            f"not {length}"
        )
        raise MemoryUseError(message)


def _unpacked(packed: bytes, size: int) -> bytes | None:
    """Returns what was packed; None where it has not that many bytes."""
    decompressor = lzma.LZMADecompressor()
    raw = bytearray()
    while not decompressor.eof:
        # One byte more would show that the file holds more than it says.
        room = min(size + 1 - len(raw), _PIECE_BYTES)
        piece = decompressor.decompress(packed, max_length=room)
        packed = b""
        raw += piece
        stuck = not piece and decompressor.needs_input
        if len(raw) > size or (stuck and not decompressor.eof):
            return None
    return bytes(raw) if len(raw) == size else None


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
        self._left_out: set[int] = set()

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

    def leave_out(self, name: int, *, out: bool = True) -> None:
        """Takes back all that was written of a block, before and after; or none of it."""
        (self._left_out.add if out else self._left_out.discard)(name)

    def trace(self) -> Trace:
        """Returns what was written."""
        events = np.array(self._events, EVENT)
        of_block = events["operation"] != Operation.STEP
        gone = of_block & np.isin(events["id"], list(self._left_out))
        return Trace(name=self._name, events=events[~gone])
