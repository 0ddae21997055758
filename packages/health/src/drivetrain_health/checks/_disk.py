"""Whether a folder takes a file and gives it back."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING

from drivetrain_health.checks._task import CheckFailedError, Found, NotHereError

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task

_BLOCK = bytes(range(256)) * 4096
_NUM_BLOCKS = 8


def measure(task: Task) -> Found:
    """Writes, syncs and reads a file; returns `disk_write_mb_per_s` and `disk_read_mb_per_s`.

    The file has no name, so that nothing of it stays, whatever happens.

    Raises:
        NotHereError: No folder was given.
        CheckFailedError: It cannot be written or read, or other bytes come back.
    """
    if task.folder is None:
        message = "no folder was given"
        raise NotHereError(message)
    size = len(_BLOCK) * _NUM_BLOCKS
    task.note(f"writing to {task.folder}")
    try:
        with tempfile.TemporaryFile(dir=task.folder, buffering=0) as file:
            begin_s = time.monotonic()
            for _ in range(_NUM_BLOCKS):
                file.write(_BLOCK)
            os.fsync(file.fileno())
            write_s = time.monotonic() - begin_s
            # What the kernel still has of it would be read from memory.
            os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            task.note(f"reading from {task.folder}")
            begin_s = time.monotonic()
            is_same = all(file.read(len(_BLOCK)) == _BLOCK for _ in range(_NUM_BLOCKS))
            read_s = time.monotonic() - begin_s
    except OSError as error:
        message = f"a file of {size} bytes in {task.folder}: {error.strerror or error}"
        raise CheckFailedError(message) from error
    if not is_same:
        message = f"what was read in {task.folder} is not what was written"
        raise CheckFailedError(message)
    rates = {"disk_write_mb_per_s": size / write_s / 1e6}
    rates["disk_read_mb_per_s"] = size / read_s / 1e6
    return Found(rates)
