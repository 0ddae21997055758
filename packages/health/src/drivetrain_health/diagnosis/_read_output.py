"""The text of a file that a process has written, whatever it holds."""

from __future__ import annotations

import codecs
import io
import os
import re
import stat
from typing import IO, TYPE_CHECKING

from drivetrain_health.failures import OutputDigest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_CHUNK_BYTES, _END_BYTES = 1 << 20, 1 << 18
# No character of UTF-32 that is written has more zeros beside the next one's.
_HOLE = re.compile(rb"\0{4,}")


def read_output(path: str | Path | IO[bytes], *, max_bytes: int = 1 << 31) -> str:
    r"""Returns what a file says of a failure, from its beginning, and its end as it is.

    Of a large file the lines that speak of no failure are left out, so that it takes no more
    memory than a small one: see `OutputDigest`. A line says what was not read. UTF-8, UTF-16
    and UTF-32 are told by their bytes; holes, as a file has that was truncated while it was
    written, end a line.

    Args:
        path: The file. What is not there, not readable or not a file is empty. One that is
            open may be a pipe, and is waited for.
        max_bytes: How much of it is read at most, from its end; from the beginning of a pipe.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(b"KeyError: 'lr'\n" + 10**6 * b"a frame\n")
        ...     file.flush()
        ...     read_output(file.name)[:15]
        "KeyError: 'lr'\n"
    """
    if isinstance(path, (str, os.PathLike)):
        data, at = read_end(path, _END_BYTES)
        with open(path, "rb") if at else io.BytesIO(data) as file:  # noqa: PTH123
            return read_output(file, max_bytes=max_bytes)
    digest, at = OutputDigest(end_bytes=_END_BYTES), 0
    if path.seekable():
        at = max(0, path.seek(0, os.SEEK_END) - max_bytes)
        path.seek(at)
    if at:
        digest.write(b"[%d bytes before this were not read]\n" % at)
    recode = None
    while max_bytes > 0 and (data := path.read(min(_CHUNK_BYTES, max_bytes))):
        max_bytes -= len(data)
        if recode is None and (sample := _HOLE.sub(b"", data)):
            # Zeros in the place of what was left out of a character that is cut.
            recode = _recoder(bytes(at % 4) + data, sample)
            recode(bytes(at % 4))
        digest.write(_HOLE.sub(b"\n", recode(data) if recode else data))
    if max_bytes <= 0 and path.read(1):
        digest.write(b"\n[what comes after this was not read]\n")
    return digest.text().removeprefix("\ufeff")


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


def _recoder(data: bytes, sample: bytes) -> Callable[[bytes], bytes]:
    """Returns what makes UTF-8 of an output, whose first bytes are given.

    Args:
        data: The bytes.
        sample: The same without holes.
    """
    num_zeros, mark = sample.count(0), sample[:2]
    if num_zeros * 4 < len(sample) and mark not in (b"\xff\xfe", b"\xfe\xff"):
        return bytes
    # Latin text in UTF-16 has a zero in every other place, in UTF-32 three in four. Where
    # they are the first ones, the high bytes come first.
    width = 4 if num_zeros * 8 > 5 * len(sample) else 2
    is_big = data[::width].count(0) > data[width - 1 :: width].count(0)
    order = "be" if is_big or mark == b"\xfe\xff" else "le"
    decoder = codecs.getincrementaldecoder(f"utf-{8 * width}-{order}")("replace")
    return lambda part: decoder.decode(part).encode()
