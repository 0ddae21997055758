"""POSIX storage: checkpoints in a folder of a file system, committed by one rename.

The files of a save are written and synced first; the rename of the root manifest into
place, in a folder that is synced after it, is the one moment from which on the checkpoint
exists. Nothing that is committed is ever written to again, and what is deleted loses its
root manifest first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from typing import TYPE_CHECKING

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._storage.atomic_write import sync_folder
from drivetrain_checkpoint._storage.protocol import (
    Storage,
    as_storage_error,
    parse_name,
)

if TYPE_CHECKING:
    from pathlib import Path

    from drivetrain_checkpoint._native import Progress

_READERS = 4


class PosixStorage(Storage):
    """A folder.

    Args:
        root: The folder; it is made when something is written.
        aside: Where saves lie until they are committed; None for in the folder. Then the
            folder is not there before one is, for those who take it for a checkpoint.
    """

    def __init__(self, root: Path, aside: Path | None = None) -> None:
        self.root = root
        self.url = str(root)
        self._aside = aside
        self._root_is_synced = False

    def write(
        self,
        name: str,
        file: str,
        memory: memoryview,
        num_threads: int,
        progress: Progress,
    ) -> list[int]:
        """Writes past the page cache, and syncs."""
        path = self._folder(name) / file
        with as_storage_error("write", path):
            fd = _create(path)
            try:
                sums, _ = _native.write_file(fd, memory, num_threads, progress)
                os.fsync(fd)
            finally:
                os.close(fd)
        return sums

    def write_small(self, name: str, file: str, content: bytes) -> None:
        """Writes and syncs a file aside, and renames it; `commit` syncs the folder."""
        path = self._folder(name) / file
        temporary = path.with_name(f"{file}.tmp")
        with as_storage_error("write", path):
            _write_synced(temporary, content)
            temporary.rename(path)

    def commit(self, name: str, file: str, content: bytes) -> None:
        """Writes a file aside, renames it into place, and syncs the folder."""
        path = self._folder(name) / file
        temporary = path.with_name(f"{file}.tmp")
        with as_storage_error("commit", path):
            _write_synced(temporary, content)
            # All other files are durable by name before the one that vouches for them.
            sync_folder(path.parent)
            temporary.rename(path)
            try:
                sync_folder(path.parent)
                self._move_in(name)
                # A process that died may have made the folder, and not synced it.
                sync_folder(self.root)
            except OSError:
                # What is reported as failed must not be found as a checkpoint.
                with contextlib.suppress(OSError):
                    (self._at(name) / file).unlink()
                raise

    def names(self) -> list[str]:
        found = []
        for place in filter(None, (self.root, self._aside)):
            with (
                contextlib.suppress(FileNotFoundError),
                as_storage_error("list", place, may_miss=True),
            ):
                # A path for each of 1,000 would cost more than all else of a commit.
                found += os.listdir(place)  # noqa: PTH208
        return [name for name in found if parse_name(name)]

    def files(self, name: str) -> dict[str, int]:
        return {file: stat.st_size for file, stat in self._stats(name).items()}

    def exists(self, name: str, file: str) -> bool:
        return (self.root / name / file).exists()

    def ensure_durable(self, name: str, file: str) -> bool:
        """Syncs the folders of a file that is there."""
        path = self.root / name / file
        if not path.exists():
            return False
        with as_storage_error("sync", path.parent):
            sync_folder(path.parent)
            sync_folder(self.root)
            # The folder itself may have appeared with its first checkpoint.
            with contextlib.suppress(PermissionError):
                sync_folder(self.root.parent)
        return True

    def read(self, name: str, file: str) -> bytes:
        path = self._at(name) / file
        with as_storage_error("read", path, may_miss=True):
            try:
                return path.read_bytes()
            except IsADirectoryError as error:
                message = f"{path} is a folder"
                raise CorruptCheckpointError(message) from error
            except NotADirectoryError as error:
                raise FileNotFoundError(*error.args) from error

    def read_into(self, name: str, file: str, memory: memoryview, at: int) -> None:
        """Reads on several threads."""
        path = self.root / name / file
        with (
            as_storage_error("read", path, may_miss=True),
            path.open("rb", buffering=0) as stream,
        ):
            _native.read_file(stream.fileno(), memory, at, _READERS)

    def changed_s(self, name: str) -> float:
        times = [stat.st_mtime for stat in self._stats(name).values()]
        with contextlib.suppress(FileNotFoundError):
            times.append(self._at(name).stat().st_mtime)
        return max(times, default=0.0)

    def remove(self, name: str, last: str) -> None:
        path = self._at(name)
        with as_storage_error("delete", path):
            if path.is_symlink():  # what it leads to is somebody else's
                path.unlink()
                return
            with contextlib.suppress(FileNotFoundError):
                (path / last).unlink()
                sync_folder(path)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path if path.parent == self.root else path.parent)

    def _stats(self, name: str) -> dict[str, os.stat_result]:
        """Returns what the file system knows of the files of a folder."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._at(name)):
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = entry.stat()
        return found

    def _folder(self, name: str) -> Path:
        """Returns the folder of a save, made durably; it may be there already."""
        path = self._at(name)
        with as_storage_error("make", path):
            if not self._root_is_synced:
                _make_synced(self._aside or self.root)
                self._root_is_synced = True
            if not path.is_dir():
                _make_synced(path)
        return path

    def _at(self, name: str) -> Path:
        """Returns where a save lies now, or is to lie."""
        there = self.root / name
        if self._aside is None or there.exists():
            return there
        # In a folder that becomes the storage's, if it has none yet.
        return self._aside / name / name

    def _move_in(self, name: str) -> None:
        """Moves a save that lies aside into the folder, which appears with it."""
        if self._aside is None:
            return
        try:
            (self._aside / name).rename(self.root)
        except OSError:  # others lie there already
            (self._aside / name / name).rename(self.root / name)
            (self._aside / name).rmdir()
        sync_folder(self.root.parent)


def _make_synced(path: Path) -> None:
    """Makes a folder and those above it, so that they survive the loss of power."""
    if not path.parent.is_dir():
        _make_synced(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    sync_folder(path.parent)


def _create(file: Path) -> int:
    """Opens a new file, past the page cache where the file system has that."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(file, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(file, flags, 0o644)


def _write_synced(file: Path, content: bytes) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        done = 0
        while done < len(content):
            done += os.write(fd, content[done:])
        os.fsync(fd)
    finally:
        os.close(fd)
