"""The text of a file that a process has written, whatever it holds."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from drivetrain_health.failures import OutputDigest

if TYPE_CHECKING:
    from pathlib import Path


_CHUNK_BYTES, _END_BYTES = 1 << 20, 1 << 18


def read_output(path: str | Path, *, max_bytes: int = 1 << 31) -> str:
    r"""Returns what a file says of a failure, from its beginning, and its end as it is.

    Of a large file the lines that speak of no failure are left out, so that it takes no more
    memory than a small one: see `OutputDigest`. A line says what was not read.

    Args:
        path: The file. What is not there, not readable or not a file is empty.
        max_bytes: How much of it is read at most, from its end.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(b"KeyError: 'lr'\n" + 10**6 * b"a frame\n")
        ...     file.flush()
        ...     read_output(file.name)[:15]
        "KeyError: 'lr'\n"
    """
    data, at = read_end(path, _END_BYTES)
    if not at:
        return _decoded(data, 0)
    size = at + len(data)
    digest, at = OutputDigest(end_bytes=_END_BYTES), max(0, size - max_bytes)
    if at:
        digest.write(b"[%d bytes before this were not read]\n" % at)
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(at)
        for data in iter(partial(file.read, _CHUNK_BYTES), b""):
            digest.write(data)
    return _decoded(digest.data(), 0)


def read_end(path: str | Path, max_bytes: int) -> tuple[bytes, int]:
    """Returns the end of a file, and where in it that begins; nothing if it is no file.

    It waits for nobody: a pipe, or a device, is no file.

    Args:
        path: Of the file.
        max_bytes: How long the end is at most.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b"", 0
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return b"", 0
        start = max(0, found.st_size - max_bytes)
        return os.pread(descriptor, max_bytes, start), start
    except OSError:
        return b"", 0
    finally:
        os.close(descriptor)


def _decoded(data: bytes, start: int) -> str:
    if data.count(0) * 4 < len(data) or not data:
        return data.decode(errors="replace").removeprefix("\ufeff")
    # Latin text in UTF-16 has a zero in every other place: in even ones, the high bytes
    # come first. A tail may begin in the middle of a character.
    data = data[start % 2 :]
    is_big_endian = data[::2].count(0) > data[1::2].count(0)
    encoding = "utf-16-be" if is_big_endian else "utf-16-le"
    return data.decode(encoding, errors="replace").removeprefix("\ufeff")
