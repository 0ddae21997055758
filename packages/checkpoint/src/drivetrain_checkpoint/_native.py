"""Native functions: copies, checksums and direct writes in C++, or slower in Python."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import logging
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_core.native_library import load_extension

_extension: Any
_extension, _missing = load_extension("drivetrain_checkpoint._extension")

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Sequence

    from drivetrain_checkpoint._extension import Progress as Progress  # noqa: PLC0414
elif _extension is not None:
    Progress = _extension.Progress
else:

    @dataclass
    class Progress:
        """How far a write is; see the one of the extension module."""

        done: int = 0
        stop: int = 0


logger = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
"""How much memory one checksum covers."""

_WRITE_BYTES = 16 << 20
_COPY_BYTES = 4 << 20


def missing_because() -> str | None:
    """Returns why the slower functions in Python are used, or None if they are not."""
    return _missing


def address_of(memory: mmap.mmap) -> int:
    """Returns where a writable mapping lies; it must not be closed meanwhile."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def copy(
    sources: array[int], targets: array[int], sizes: array[int], num_threads: int
) -> None:
    """Copies memory between addresses.

    Args:
        sources: From where, of type code `Q`.
        targets: To where; blocks must not overlap.
        sizes: How many bytes each.
        num_threads: How many threads copy.

    Raises:
        MemoryError: There is none left.
    """
    if _extension is not None:
        _extension.copy(sources, targets, sizes, num_threads)
        return
    pieces = [
        (target + at, source + at, min(_COPY_BYTES, size - at))
        for source, target, size in zip(sources, targets, sizes, strict=True)
        for at in range(0, size, _COPY_BYTES)
    ]
    with ThreadPoolExecutor(num_threads) as pool:  # memmove lets go of the GIL
        shares = [pieces[i::num_threads] for i in range(num_threads)]
        list(pool.map(_move, shares))


def populate(memory: mmap.mmap) -> None:
    """Makes the pages of a mapping present, so that the first copy finds them.

    Raises:
        MemoryError: The machine has not as much.
    """
    if _extension is None:
        # What another thread writes meanwhile must stay: nothing is written here.
        for at in range(0, len(memory), mmap.PAGESIZE):
            _ = memory[at]
        return
    try:
        _extension.populate(memory)
    except OSError as error:
        message = f"{len(memory):,} bytes of memory are not to be had"
        raise MemoryError(message) from error


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Returns the CRC-32C of some bytes.

    Example:
        >>> hex(checksum(b"123456789"))
        '0xe3069283'
    """
    if _extension is None:
        return _crc32c()(bytes(data))
    found: int = _extension.crc32c(data)
    return found


def checksums(memory: memoryview, num_threads: int) -> list[int]:
    """Returns the CRC-32C of each block of `BLOCK_BYTES` bytes of some memory."""
    if _extension is None:
        return [checksum(block) for block in parts(memory, BLOCK_BYTES)]
    found: list[int] = _extension.checksums(memory, BLOCK_BYTES, num_threads)
    return found


def write_file(
    fd: int, memory: memoryview, num_threads: int, progress: Progress
) -> tuple[list[int], bool]:
    """Writes memory to the beginning of an empty file, past the page cache if it can.

    With O_DIRECT set on the descriptor the memory must begin at a multiple of 4096, and
    what lies up to the next multiple behind its end is read too.

    Args:
        fd: The file.
        memory: What is written.
        num_threads: How many threads write.
        progress: How far it is, and whether it is to stop.

    Returns:
        The CRC-32C of each block of `BLOCK_BYTES` bytes, and whether the page cache was
        passed by.

    Raises:
        OSError: A write failed, with its error number; ECANCELED if it was stopped.
    """
    if _extension is None:
        return _write_in_python(fd, memory, progress)
    found: tuple[list[int], bool] = _extension.write_file(
        fd, memory, BLOCK_BYTES, num_threads, progress
    )
    return found


def read_file(fd: int, memory: memoryview, at: int, num_threads: int) -> None:
    """Fills memory from part of a file.

    Args:
        fd: The file.
        memory: What is filled.
        at: Where in the file it begins.
        num_threads: How many threads read.

    Raises:
        OSError: A read failed; EIO if the file ends before.
    """
    if _extension is not None:
        _extension.read_file(fd, memory, at, num_threads)
        return
    done = 0
    while done < len(memory):
        if not (got := os.preadv(fd, [memory[done:]], at + done)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += got


def parts(memory: memoryview, part_bytes: int) -> list[memoryview]:
    """Returns memory in parts of so many bytes."""
    return [memory[at : at + part_bytes] for at in range(0, len(memory), part_bytes)]


def _move(pieces: Sequence[tuple[int, int, int]]) -> None:
    for target, source, size in pieces:
        ctypes.memmove(target, source, size)


def _write_in_python(
    fd: int, memory: memoryview, progress: Progress
) -> tuple[list[int], bool]:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    sums, at = [], 0
    for block in parts(memory, _WRITE_BYTES):
        if progress.stop:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        sums += checksums(block, 1)
        done = 0
        while done < len(block):
            done += os.pwrite(fd, block[done:], at + done)
        at += len(block)
        progress.done += len(block)
    return sums, False


@functools.cache
def _crc32c() -> Callable[[bytes], int]:
    """Returns the fastest CRC-32C that Python has here."""
    try:
        import google_crc32c
    except ImportError:
        logger.warning(
            "checksums are slow: %s, and google-crc32c is not there either; "
            "`pip install 'drivetrain-checkpoint[crc32c]'` makes them fast",
            missing_because(),
        )
        return _slow_crc32c
    value: Callable[[bytes], int] = google_crc32c.value
    return value


def _slow_crc32c(data: bytes) -> int:
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _crc_table() -> list[int]:
    table = []
    for n in range(256):
        crc = n
        for _ in range(8):
            crc = (crc >> 1) ^ 0x82F63B78 if crc & 1 else crc >> 1
        table.append(crc)
    return table
