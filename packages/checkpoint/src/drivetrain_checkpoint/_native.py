"""Copying, checking and writing large memory: in C++, or in Python where there is none.

The library is built with the package and has no link to Python or torch.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import drivetrain_checkpoint

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

__all__ = [
    "BLOCK_BYTES",
    "address_of",
    "checksum",
    "checksums",
    "copy",
    "missing_because",
    "populate",
    "write_file",
]

BLOCK_BYTES = 16 << 20
"""How much memory one checksum covers."""

_FILE = "drivetrain_checkpoint.so"
_PREFIX = "drivetrain_checkpoint_v1_"


class _Block(ctypes.Structure):
    _fields_ = (
        ("source", ctypes.c_uint64),
        ("target", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


class _WriteResult(ctypes.Structure):
    _fields_ = (
        ("error", ctypes.c_int),
        ("at", ctypes.c_uint64),
        ("was_direct", ctypes.c_int),
    )


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """Returns the library, or None and the reason."""
    # In an editable installation the library and the sources lie in two folders.
    folders = [Path(folder) for folder in drivetrain_checkpoint.__path__]
    file = next((f / _FILE for f in folders if (f / _FILE).exists()), None)
    if file is None:
        return None, "the package was installed without a C++ compiler"
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        return None, f"its library does not load: {error}"
    getattr(library, f"{_PREFIX}crc32c").restype = ctypes.c_uint32
    getattr(library, f"{_PREFIX}write").restype = _WriteResult
    return library, None


def missing_because() -> str | None:
    """Returns why the slower functions in Python are used, or None if they are not."""
    return _load()[1]


def address_of(memory: mmap.mmap) -> int:
    """Returns where a writable mapping lies; it must not be closed meanwhile."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def copy(blocks: Sequence[tuple[int, int, int]], num_threads: int) -> None:
    """Copies memory between addresses.

    Args:
        blocks: From where, to where, and how many bytes; they must not overlap.
        num_threads: How many threads copy.

    Raises:
        MemoryError: There is none left.
    """
    library, _ = _load()
    if library is None:
        for source, target, size in blocks:
            ctypes.memmove(target, source, size)
        return
    array = (_Block * len(blocks))(*(_Block(*block) for block in blocks))
    number = ctypes.c_uint64(len(blocks))
    if getattr(library, f"{_PREFIX}copy")(array, number, num_threads):
        message = f"no memory to copy {len(blocks)} blocks"
        raise MemoryError(message)


def populate(address: int, size_bytes: int) -> None:
    """Makes the pages of a mapping present, so that the first copy finds them.

    Raises:
        MemoryError: The machine has not as much.
    """
    library, _ = _load()
    if library is None:
        step = 1 << 20
        for at in range(0, size_bytes, step):
            ctypes.memset(address + at, 0, min(step, size_bytes - at))
        return
    pointer, size = ctypes.c_void_p(address), ctypes.c_uint64(size_bytes)
    if error := getattr(library, f"{_PREFIX}populate")(pointer, size):
        message = f"{size_bytes:,} bytes of memory are not to be had"
        raise MemoryError(message) from OSError(error, os.strerror(error))


def checksum(data: bytes | memoryview) -> int:
    """Returns the CRC-32C of some bytes.

    Example:
        >>> hex(checksum(b"123456789"))
        '0xe3069283'
    """
    library, _ = _load()
    if library is None:
        return _crc32c(data)
    view = bytes(data)
    return int(
        getattr(library, f"{_PREFIX}crc32c")(0, view, ctypes.c_uint64(len(view)))
    )


def checksums(address: int, size_bytes: int, num_threads: int) -> list[int]:
    """Returns the CRC-32C of each block of `BLOCK_BYTES` bytes of some memory."""
    library, _ = _load()
    if library is None:
        return [
            _crc32c(_bytes_at(address + at, min(BLOCK_BYTES, size_bytes - at)))
            for at in range(0, size_bytes, BLOCK_BYTES)
        ]
    found = (ctypes.c_uint32 * (-(-size_bytes // BLOCK_BYTES)))()
    arguments = (
        ctypes.c_void_p(address),
        ctypes.c_uint64(size_bytes),
        ctypes.c_uint64(BLOCK_BYTES),
        num_threads,
        found,
    )
    if getattr(library, f"{_PREFIX}checksums")(*arguments):
        message = f"no memory to check {size_bytes:,} bytes"
        raise MemoryError(message)
    return list(found)


def write_file(
    fd: int, address: int, size_bytes: int, num_threads: int
) -> tuple[list[int], bool]:
    """Writes memory to the beginning of an empty file, past the page cache if it can.

    With O_DIRECT set on the descriptor the address must be a multiple of 4096, and the
    memory up to the next multiple behind its end is read too.

    Args:
        fd: The file.
        address: Where the memory begins.
        size_bytes: How long it is.
        num_threads: How many threads write.

    Returns:
        The CRC-32C of each block of `BLOCK_BYTES` bytes, and whether the page cache was
        passed by.

    Raises:
        OSError: A write failed; with its error number.
    """
    library, _ = _load()
    if library is None:
        return _write_in_python(fd, address, size_bytes)
    found = (ctypes.c_uint32 * (-(-size_bytes // BLOCK_BYTES)))()
    result = getattr(library, f"{_PREFIX}write")(
        fd,
        ctypes.c_void_p(address),
        ctypes.c_uint64(size_bytes),
        ctypes.c_uint64(BLOCK_BYTES),
        num_threads,
        found,
    )
    if result.error:
        message = f"{os.strerror(result.error)} at byte {result.at:,}"
        raise OSError(result.error, message)
    return list(found), bool(result.was_direct)


def _write_in_python(fd: int, address: int, size_bytes: int) -> tuple[list[int], bool]:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    sums = []
    for at in range(0, size_bytes, BLOCK_BYTES):
        block = _bytes_at(address + at, min(BLOCK_BYTES, size_bytes - at))
        sums.append(_crc32c(block))
        done = 0
        while done < len(block):
            done += os.pwrite(fd, block[done:], at + done)
    return sums, False


def _bytes_at(address: int, size_bytes: int) -> memoryview:
    array = (ctypes.c_char * size_bytes).from_address(address)
    return memoryview(array).cast("B")


@functools.cache
def _crc_table() -> list[int]:
    table = []
    for n in range(256):
        crc = n
        for _ in range(8):
            crc = (crc >> 1) ^ 0x82F63B78 if crc & 1 else crc >> 1
        table.append(crc)
    return table


def _crc32c(data: bytes | memoryview) -> int:
    """The CRC-32C of some bytes, slowly."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in bytes(data):
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
