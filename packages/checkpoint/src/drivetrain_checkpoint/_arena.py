"""Shared memory that holds the last two saves of one rank, and outlives it.

The memory is an anonymous file, which lives as long as any process has it open: the
trainer, and the daemon it is handed to. It has two generations. A save fills the one that
is not the newest, and publishes it by a single store of eight bytes; whoever dies before
that store leaves the other generation as it was.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._layout.safetensors_layout import PAGE
from drivetrain_core import machine_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

# magic, version, record bytes, image bytes, sequence, checksum of the record
_HEADER = struct.Struct("<8sQQQQQ")
_STATE_AT = 256
_STATE = struct.Struct("<Q")
_MAGIC = b"dtckptG1"
_EMPTY = 0

_ARENA = struct.Struct("<8sQQ")  # magic, version, bytes of a generation
_ARENA_MAGIC = b"dtckptA1"


@dataclass(frozen=True, slots=True)
class Generation:
    """One published save in memory.

    Args:
        index: 0 or 1.
        sequence: The number of the save in this arena, from 1.
        record: The first line of what belongs to the image, as plain data.
        record_at: Where all of that begins in the arena.
        record_bytes: How long it is.
        image_at: Where the image begins in the arena.
        image_bytes: How long it is.
    """

    index: int
    sequence: int
    record: Mapping[str, Any]
    record_at: int
    record_bytes: int
    image_at: int
    image_bytes: int


class Arena:
    """Two generations in one mapping.

    One process writes, at most one generation at a time; others read what is published.
    A generation that is being read must not be begun again: the writer asks first.

    Args:
        fd: The anonymous file; the arena takes it over.
    """

    def __init__(self, fd: int) -> None:
        """Maps an arena that was made by `create`."""
        self.fd = fd
        # First, so that it is closed even if what follows raises. The memory lives on
        # where others have it open, and the mapping while somebody looks into it.
        weakref.finalize(self, os.close, fd)
        self._memory = mmap.mmap(fd, 0)
        start = self._memory[: _ARENA.size].ljust(_ARENA.size, b"\0")
        magic, version, size = _ARENA.unpack(start)
        fits = len(self._memory) == PAGE + 2 * size and size >= PAGE
        if magic != _ARENA_MAGIC or version != 1 or not fits:
            message = f"descriptor {fd} is not an arena of this version"
            raise ValueError(message)
        self.generation_bytes: int = size
        self.address = _native.address_of(self._memory)

    @classmethod
    def create(cls, image_bytes: int, record_bytes: int) -> Arena:
        """Returns a new arena whose generations hold so much.

        Raises:
            MemoryError: The machine has not as much.
        """
        generation = PAGE + _pages(record_bytes) + _pages(image_bytes)
        _require(2 * generation)
        fd = os.memfd_create("drivetrain-checkpoint", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, PAGE + 2 * generation)
            os.pwrite(fd, _ARENA.pack(_ARENA_MAGIC, 1, generation), 0)
            # The copy is the arena's, which may not find addresses for it.
            return cls(os.dup(fd))
        except OSError as error:
            message = f"no {2 * generation:,} bytes of shared memory: {error.strerror}"
            raise MemoryError(message) from error
        finally:
            os.close(fd)

    @property
    def size_bytes(self) -> int:
        """The memory that both generations take."""
        return len(self._memory)

    def require_room(self) -> None:
        """Makes sure that there is memory for the pages that are not present yet.

        They are only named before they are written to, and where there are none then,
        the kernel kills somebody.

        Raises:
            MemoryError: The machine, or the container, has not as much.
        """
        missing = self.size_bytes - os.fstat(self.fd).st_blocks * 512
        # The room that records may grow into stays empty.
        if missing > self.generation_bytes // 2:
            _require(missing)

    def populate(self) -> None:
        """Makes every page present, so that the first save is as fast as the next.

        Raises:
            MemoryError: The machine has not as much.
        """
        self.require_room()
        _native.populate(self._memory)

    def holds(self, image_bytes: int, record_bytes: int) -> bool:
        """Whether a generation has room for so much."""
        need = PAGE + _pages(record_bytes) + _pages(image_bytes)
        return need <= self.generation_bytes

    def begin(self, index: int) -> None:
        """Withdraws a generation, which is then free to be filled."""
        self._set_state(index, _EMPTY)

    def image_address(self, record_bytes: int, index: int) -> int:
        """Returns where the image of a generation will lie in this process."""
        return self.address + self._start(index) + PAGE + _pages(record_bytes)

    def publish(
        self, index: int, sequence: int, record: bytes, record_bytes: int, size: int
    ) -> None:
        """Makes a filled generation the newest.

        Args:
            index: The generation.
            sequence: A number larger than that of the other generation.
            record: What belongs to the image: a line of JSON, and more behind it.
            record_bytes: The room that was set aside for it.
            size: The length of the image.
        """
        at = self._start(index)
        self._memory[at + PAGE : at + PAGE + len(record)] = record
        self._memory[at : at + _HEADER.size] = _HEADER.pack(
            _MAGIC,
            _pages(record_bytes),
            len(record),
            size,
            sequence,
            _native.checksum(record),
        )
        # One aligned store; x86 and Arm's release order keep what came before before.
        self._set_state(index, sequence)

    def generations(self) -> list[Generation]:
        """Returns what is published, the newest first."""
        found = [self._read(index) for index in (0, 1)]
        there = [generation for generation in found if generation is not None]
        return sorted(there, key=lambda generation: -generation.sequence)

    def sequences(self) -> tuple[int, int]:
        """Returns the numbers of the saves in both generations, 0 for none; cheap."""
        first, second = (
            _STATE.unpack_from(self._memory, self._start(index) + _STATE_AT)[0]
            for index in (0, 1)
        )
        return first, second

    def has(self, generation: Generation) -> bool:
        """Whether a generation is still the save that it was."""
        return self.sequences()[generation.index] == generation.sequence

    def is_same(self, other: Arena) -> bool:
        """Whether two arenas are the same memory."""
        mine, theirs = os.fstat(self.fd), os.fstat(other.fd)
        return (mine.st_dev, mine.st_ino) == (theirs.st_dev, theirs.st_ino)

    def body(self, generation: Generation) -> bytes:
        """Returns what stands in a record behind its first line."""
        at = generation.record_at
        text = self._memory[at : at + generation.record_bytes]
        return text.partition(b"\n")[2]

    def view(self, at: int, size_bytes: int) -> memoryview:
        """Returns bytes of the arena, which live as long as the mapping."""
        return memoryview(self._memory)[at : at + size_bytes]

    def _start(self, index: int) -> int:
        return PAGE + index * self.generation_bytes

    def _set_state(self, index: int, state: int) -> None:
        _STATE.pack_into(self._memory, self._start(index) + _STATE_AT, state)

    def _read(self, index: int) -> Generation | None:
        at = self._start(index)
        (state,) = _STATE.unpack_from(self._memory, at + _STATE_AT)
        if state == _EMPTY:
            return None
        magic, room, length, size, sequence, crc = _HEADER.unpack_from(self._memory, at)
        fits = max(length, room) + PAGE <= self.generation_bytes - size
        if magic != _MAGIC or sequence != state or not fits:
            return None
        record = self._memory[at + PAGE : at + PAGE + length]
        if _native.checksum(record) != crc:
            return None
        line = json.loads(record.partition(b"\n")[0])
        return Generation(
            index, sequence, line, at + PAGE, length, at + PAGE + room, size
        )


def _require(size_bytes: int) -> None:
    if size_bytes > (left := machine_limits.memory().available):
        message = (
            f"saves need {size_bytes:,} bytes more of shared memory, for two copies of the "
            f"state, and {left:,} are left"
        )
        raise MemoryError(message)


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE) * PAGE
