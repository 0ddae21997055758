"""A disk that is full, and files that may grow no further."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_health.faults._errors import MissingPrivilegeError, TargetGoneError
from drivetrain_health.faults._ongoing import Ongoing
from drivetrain_health.faults._privileges import call_libc, require
from drivetrain_health.faults._target import Held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_health.faults._target import Target

_NO_SET_UID, _NO_DEVICES, _DETACH = 0x2, 0x4, 0x2
_CHUNK_BYTES = 1 << 20


class SmallDisk:
    """A folder on a disk of its own.

    Args:
        path: The folder.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def free_bytes(self) -> int:
        """What new blocks there are for, in bytes."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave_bytes: int = 0) -> Ongoing:
        """Fills the disk; what is written then fails with ENOSPC.

        A file may still grow to the end of the block that it has begun.

        Args:
            leave_bytes: What is left free, rounded up to blocks.

        Returns:
            The fault; healed, it frees what was filled.

        Raises:
            ProgramError: So much is not free.
        """
        if not 0 <= leave_bytes <= self.free_bytes:
            message = f"{self.free_bytes} bytes are free, {leave_bytes} cannot be left"
            raise ProgramError(message)
        descriptor, name = tempfile.mkstemp(prefix=".filler-", dir=self.path)
        try:
            size_bytes = _write_all(descriptor)
            block_bytes = os.statvfs(self.path).f_frsize
            blocks = -(-leave_bytes // block_bytes)
            os.ftruncate(descriptor, max(0, size_bytes - blocks * block_bytes))
        except BaseException:
            Path(name).unlink()
            raise
        finally:
            os.close(descriptor)
        return Ongoing(lambda: Path(name).unlink(missing_ok=True))


@contextmanager
def small_disk(size_bytes: int) -> Iterator[SmallDisk]:
    """Makes a folder on a small disk in memory while a block runs.

    Args:
        size_bytes: Its size; the kernel rounds it up to pages.

    Yields:
        The disk. At the end it is gone, with all that is on it.

    Raises:
        ProgramError: The size is not positive.
        MissingPrivilegeError: This process may not mount: see `missing_because`. What
            an ordinary user can do is `limit_file_size`.

    Example:
        >>> from drivetrain_health.faults import missing_because
        >>> if not missing_because("disk"):
        ...     with small_disk(1 << 20) as disk:
        ...         with disk.fill():
        ...             assert disk.free_bytes == 0
        ...         assert disk.free_bytes == 1 << 20
    """
    if size_bytes < 1:
        message = f"the size of a disk must be at least 1 byte, got {size_bytes}"
        raise ProgramError(message)
    require("disk")
    with tempfile.TemporaryDirectory(prefix="drivetrain-disk-") as folder:
        kind, place = b"tmpfs", os.fsencode(folder)
        options = f"size={size_bytes},mode=0700".encode()
        call_libc("mount", kind, place, kind, _NO_SET_UID | _NO_DEVICES, options)
        try:
            yield SmallDisk(Path(folder))
        finally:
            # Files that are still open keep what they have, out of everybody's sight.
            call_libc("umount2", place, _DETACH)


@contextmanager
def limit_file_size(target: Target, size_bytes: int) -> Iterator[None]:
    """Lets no file of a process grow beyond a size while a block runs.

    What goes beyond fails with EFBIG, not with ENOSPC, and only if the process ignores
    SIGXFSZ, as Python does; others die of it.

    Args:
        target: The process. Those that it starts in the block keep the limit.
        size_bytes: The most that a file may have.

    Raises:
        ProgramError: The size is negative, or no process can be meant.
        TargetGoneError: It has ended.
        MissingPrivilegeError: It belongs to another user.

    Example:
        >>> import subprocess
        >>> worker = subprocess.Popen(["sleep", "60"])
        >>> with limit_file_size(worker, 4096):
        ...     pass  # it can write no more than 4096 bytes to a file
        >>> worker.kill()
        >>> worker.wait()
        -9
    """
    if size_bytes < 0:
        message = f"the size of a file must be at least 0, got {size_bytes}"
        raise ProgramError(message)
    with Held(target) as process:
        kind = resource.RLIMIT_FSIZE
        try:
            before, most = resource.prlimit(process.pid, kind)
            resource.prlimit(process.pid, kind, (size_bytes, most))
        except ProcessLookupError as error:
            message = f"process {process.pid} has ended"
            raise TargetGoneError(message) from error
        except PermissionError as error:
            message = f"process {process.pid} is another user's: run it as root"
            raise MissingPrivilegeError(message) from error
        try:
            yield
        finally:
            if not process.wait(0):
                with suppress(ProcessLookupError):
                    resource.prlimit(process.pid, kind, (before, most))


def _write_all(descriptor: int) -> int:
    """Writes until the disk is full; returns how much."""
    chunk, written = bytes(_CHUNK_BYTES), 0
    while chunk:
        try:
            written += os.write(descriptor, chunk)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            chunk = chunk[: len(chunk) // 2]
    return written
