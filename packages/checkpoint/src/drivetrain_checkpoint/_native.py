"""Native library: copies, checksums and direct writes in C++, or slower in Python.

The library is built with the package and has no link to Python or torch.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import logging
import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_char_p, c_int, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from drivetrain_core.native_library import find_library

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Mapping, Sequence

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
"""How much memory one checksum covers."""

_WRITE_BYTES = 16 << 20
_COPY_BYTES = 4 << 20

_FILE = "drivetrain_checkpoint.so"
_PREFIX = "drivetrain_checkpoint_v1_"


class Progress(ctypes.Structure):
    """How far a write is; any thread may look at it, and stop it.

    Attributes:
        done: The bytes that were written.
        stop: Set it to 1, and the write ends with ECANCELED before its next block.
    """

    _fields_ = (("done", c_uint64), ("stop", c_uint64))
    done: int
    stop: int


class _WriteResult(ctypes.Structure):
    _fields_ = (
        ("error", c_int),
        ("at", c_uint64),
        ("was_direct", c_int),
    )


_SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "checksums": (c_int, (c_void_p, c_uint64, c_uint64, c_int, c_void_p)),
    "copy": (c_int, (c_void_p, c_uint64, c_int)),
    "crc32c": (c_uint32, (c_uint32, c_char_p, c_uint64)),
    "populate": (c_int, (c_void_p, c_uint64)),
    "read": (c_int, (c_int, c_void_p, c_uint64, c_uint64, c_int)),
    "write": (
        _WriteResult,
        (c_int, c_void_p, c_uint64, c_uint64, c_int, c_void_p, c_void_p),
    ),
}
"""What each function of the library returns, and what it takes."""


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """Returns the library, or None and the reason."""
    file = find_library("drivetrain_checkpoint", _FILE)
    if file is None:
        return None, "the package was installed without a C++ compiler"
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        return None, f"its library does not load: {error}"
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"{_PREFIX}{name}")
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library, None


def missing_because() -> str | None:
    """Returns why the slower functions in Python are used, or None if they are not."""
    return _load()[1]


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
    library, _ = _load()
    if library is None:
        pieces = [
            (target + at, source + at, min(_COPY_BYTES, size - at))
            for source, target, size in zip(sources, targets, sizes, strict=True)
            for at in range(0, size, _COPY_BYTES)
        ]
        with ThreadPoolExecutor(num_threads) as pool:  # memmove lets go of the GIL
            shares = [pieces[i::num_threads] for i in range(num_threads)]
            list(pool.map(_move, shares))
        return
    blocks = array("Q", bytes(24 * len(sources)))
    blocks[0::3], blocks[1::3], blocks[2::3] = sources, targets, sizes
    address, _ = blocks.buffer_info()
    if library.copy(address, len(sources), num_threads):
        message = f"no memory to copy {len(sources)} blocks"
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
    if error := library.populate(address, size_bytes):
        message = f"{size_bytes:,} bytes of memory are not to be had"
        raise MemoryError(message) from OSError(error, os.strerror(error))


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Returns the CRC-32C of some bytes.

    Example:
        >>> hex(checksum(b"123456789"))
        '0xe3069283'
    """
    library, _ = _load()
    if library is None:
        return _crc32c()(bytes(data))
    return int(library.crc32c(0, bytes(data), len(data)))


def checksums(address: int, size_bytes: int, num_threads: int) -> list[int]:
    """Returns the CRC-32C of each block of `BLOCK_BYTES` bytes of some memory."""
    library, _ = _load()
    if library is None:
        return [
            _crc32c()(bytes(_bytes_at(address + at, min(BLOCK_BYTES, size_bytes - at))))
            for at in range(0, size_bytes, BLOCK_BYTES)
        ]
    found = (c_uint32 * (-(-size_bytes // BLOCK_BYTES)))()
    if library.checksums(address, size_bytes, BLOCK_BYTES, num_threads, found):
        message = f"no memory to check {size_bytes:,} bytes"
        raise MemoryError(message)
    return list(found)


def write_file(
    fd: int, address: int, size_bytes: int, num_threads: int, progress: Progress
) -> tuple[list[int], bool]:
    """Writes memory to the beginning of an empty file, past the page cache if it can.

    With O_DIRECT set on the descriptor the address must be a multiple of 4096, and the
    memory up to the next multiple behind its end is read too.

    Args:
        fd: The file.
        address: Where the memory begins.
        size_bytes: How long it is.
        num_threads: How many threads write.
        progress: How far it is, and whether it is to stop.

    Returns:
        The CRC-32C of each block of `BLOCK_BYTES` bytes, and whether the page cache was
        passed by.

    Raises:
        OSError: A write failed, with its error number; ECANCELED if it was stopped.
    """
    library, _ = _load()
    if library is None:
        return _write_in_python(fd, address, size_bytes, progress)
    found = (c_uint32 * (-(-size_bytes // BLOCK_BYTES)))()
    place = ctypes.byref(progress)
    result = library.write(
        fd, address, size_bytes, BLOCK_BYTES, num_threads, found, place
    )
    if result.error:
        message = f"{os.strerror(result.error)} at byte {result.at:,}"
        raise OSError(result.error, message)
    return list(found), bool(result.was_direct)


def read_file(
    fd: int, address: int, size_bytes: int, at: int, num_threads: int
) -> None:
    """Reads part of a file into memory.

    Args:
        fd: The file.
        address: Where the memory begins.
        size_bytes: How much is read.
        at: Where in the file it begins.
        num_threads: How many threads read.

    Raises:
        OSError: A read failed; EIO if the file ends before.
    """
    library, _ = _load()
    if library is None:
        view = _bytes_at(address, size_bytes)
        done = 0
        while done < size_bytes:
            if not (got := os.preadv(fd, [view[done:]], at + done)):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += got
        return
    if error := library.read(fd, address, size_bytes, at, num_threads):
        raise OSError(error, os.strerror(error))


def _move(pieces: Sequence[tuple[int, int, int]]) -> None:
    for target, source, size in pieces:
        ctypes.memmove(target, source, size)


def _write_in_python(
    fd: int, address: int, size_bytes: int, progress: Progress
) -> tuple[list[int], bool]:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    sums = []
    for start in range(0, size_bytes, _WRITE_BYTES):
        if progress.stop:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        size = min(_WRITE_BYTES, size_bytes - start)
        sums += checksums(address + start, size, 1)
        block, done = _bytes_at(address + start, size), 0
        while done < size:
            done += os.pwrite(fd, block[done:], start + done)
        progress.done += size
    return sums, False


def _bytes_at(address: int, size_bytes: int) -> memoryview:
    array_type = ctypes.c_char * size_bytes
    return memoryview(array_type.from_address(address)).cast("B")


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
