"""Atomic write of a file: to a temporary one, synced, and renamed into place."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import IO, TYPE_CHECKING

from drivetrain_checkpoint._storage.protocol import as_storage_error

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Gives a file to write to, which takes its name at the end, durably.

    If what is done with it raises, nothing is left of it, and a file that had the name
    stays.

    Args:
        path: The file's name; of a link, what it points to is replaced.

    Raises:
        StorageError: The disk is full, or fails.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "a"
        >>> with atomic_write(file) as stream:
        ...     _ = stream.write(b"whole"), file.exists()
        >>> file.read_bytes(), len(list(file.parent.iterdir()))
        (b'whole', 1)
    """
    place = Path(os.path.realpath(path))
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")
    with as_storage_error("write", path):
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(place)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(place.parent)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
