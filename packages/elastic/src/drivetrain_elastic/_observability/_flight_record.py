"""Flight record: the last operations of a process, readable by others while it hangs.

The file is mapped into memory, so that writing is no call to the system, and reading works also
when the process is stopped, keeps the interpreter to itself, or is dead. Times are those of the
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Self

_MAGIC = b"DTFLIGHT"
_HEADER = struct.Struct("<8sIIQ")
# Number, epoch, step, collectives, when it began, whether it waits for others, its name.
_ENTRY = struct.Struct("<QQQQd?31s")
_NUM_ENTRIES = 64
_SIZE = _HEADER.size + _NUM_ENTRIES * _ENTRY.size
_NAME_BYTES = 31


class Operation(NamedTuple):
    """Something that a rank has begun.

    Attributes:
        epoch: Of the world that it was in.
        step: That it made.
        collective: How many collectives of that world it had entered.
        name: What it was: "computing", for example.
        began_s: When, on the monotonic clock of its machine.
        is_waiting: Whether that waits for all other ranks.
    """

    epoch: int
    step: int
    collective: int
    name: str
    began_s: float
    is_waiting: bool


class FlightRecord:
    """Writes the last operations; safe in any thread, and a context manager.

    Args:
        path: Of the file. It is made anew, readable by its owner only.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with FlightRecord(f"{folder}/flight") as record:
        ...         record.write(3, 120, 17, "computing", is_waiting=False)
        ...         (last,) = read_flight_record(f"{folder}/flight")
        >>> last.step, last.name
        (120, 'computing')
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._number = 0
        self._lock = threading.Lock()
        _HEADER.pack_into(self._map, 0, _MAGIC, _NUM_ENTRIES, _ENTRY.size, 0)

    def write(
        self, epoch: int, step: int, collective: int, name: str, *, is_waiting: bool
    ) -> None:
        """Notes what this process does from now on; `Operation` says what is what."""
        data = name.encode(errors="replace")[:_NAME_BYTES]
        with self._lock:
            self._number += 1
            at = _HEADER.size + self._number % _NUM_ENTRIES * _ENTRY.size
            now_s = time.monotonic()
            # Its number comes last: an entry without the right one is half written.
            entry = (0, epoch, step, collective, now_s, is_waiting, data)
            _ENTRY.pack_into(self._map, at, *entry)
            struct.pack_into("<Q", self._map, at, self._number)

    def close(self) -> None:
        """Lets go of the file, which stays."""
        with self._lock:
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_flight_record(path: str | os.PathLike[str]) -> list[Operation]:
    """Returns the last operations of a process, the oldest first.

    Args:
        path: Of its file. What is no record, or is not there, holds none.
    """
    try:
        data = Path(path).read_bytes()
    except OSError:
        return []
    if len(data) != _SIZE:
        return []
    magic, num_entries, entry_bytes, _ = _HEADER.unpack_from(data, 0)
    if (magic, num_entries, entry_bytes) != (_MAGIC, _NUM_ENTRIES, _ENTRY.size):
        return []
    found: dict[int, Operation] = {}
    for slot in range(_NUM_ENTRIES):
        entry = _ENTRY.unpack_from(data, _HEADER.size + slot * _ENTRY.size)
        number, epoch, step, collective, began_s, is_waiting, name = entry
        if number == 0 or number % _NUM_ENTRIES != slot:
            continue
        text = name.rstrip(b"\0").decode(errors="replace")
        found[number] = Operation(epoch, step, collective, text, began_s, is_waiting)
    return [found[number] for number in sorted(found)]
