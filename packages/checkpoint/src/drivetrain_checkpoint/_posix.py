"""Checkpoints in a folder of a POSIX file system: written durably, committed at once.

Each save has a folder of its own, `step-<step>-<save id>`. Its files are written and
synced first; the rename of the root manifest into place, in a folder that is synced
after it, is the one moment from which on the checkpoint exists. Nothing that is committed
is ever written to again, and what is deleted loses its root manifest first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import shutil
from typing import TYPE_CHECKING

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._errors import CorruptCheckpointError, StorageError
from drivetrain_checkpoint._manifest import (
    ROOT_FILE,
    RankFile,
    RankManifest,
    RootManifest,
    rank_manifest_file,
    tensor_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "Saved",
    "commit",
    "find_rank_manifests",
    "list_saved",
    "make_folder",
    "read_rank",
    "read_root",
    "remove",
    "write_rank",
]

_FOLDER = re.compile(r"step-(\d{10,})-([0-9a-f]{16})")


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """A committed checkpoint.

    Args:
        path: Its folder.
        root: Its root manifest.
    """

    path: Path
    root: RootManifest


def make_folder(base: Path, step: int, save_id: str) -> Path:
    """Returns the folder of a save, made durably; it may be there already.

    Raises:
        StorageError: It cannot be made.
    """
    path = base / f"step-{step:010d}-{save_id}"
    with _as_storage_error("make", path):
        base.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True)
        _sync_folder(base)
    return path


def write_rank(
    path: Path, manifest: RankManifest, address: int, num_threads: int
) -> RankManifest:
    """Writes and syncs a rank's tensors and its manifest.

    Args:
        path: The folder of the save.
        manifest: The rank's manifest, still without checksums.
        address: Where the file's image lies in memory, at a multiple of 4096.
        num_threads: How many threads write.

    Returns:
        The manifest with checksums, as it was written.

    Raises:
        StorageError: The storage failed; nothing is committed.
    """
    file = path / tensor_file(manifest.rank)
    with _as_storage_error("write", file):
        fd = _create(file)
        try:
            sums, _ = _native.write_file(fd, address, manifest.size_bytes, num_threads)
            os.fsync(fd)
        finally:
            os.close(fd)
    whole = dataclasses.replace(manifest, crc32c=tuple(sums))
    _write_small(path / rank_manifest_file(manifest.rank), whole.to_bytes())
    with _as_storage_error("sync", path):
        _sync_folder(path)
    return whole


def find_rank_manifests(path: Path, world_size: int) -> list[RankFile] | None:
    """Returns the manifests of all ranks, or None while one is missing."""
    found = []
    for rank in range(world_size):
        try:
            text = (path / rank_manifest_file(rank)).read_bytes()
        except FileNotFoundError:
            return None
        found.append(RankFile.of(rank, text))
    return found


def commit(path: Path, root: RootManifest) -> None:
    """Makes a save a checkpoint: all files must have been written and synced.

    Raises:
        StorageError: The storage failed; the checkpoint does not exist.
    """
    temporary = path / f"{ROOT_FILE}.tmp"
    _write_small(temporary, root.to_bytes())
    with _as_storage_error("commit", path):
        temporary.rename(path / ROOT_FILE)
        _sync_folder(path)


def list_saved(base: Path) -> list[Saved]:
    """Returns the committed checkpoints of a folder, the one saved last at the end.

    What is not committed, or does not read, is left out.
    """
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in base.iterdir():
            if _FOLDER.fullmatch(path.name):
                with contextlib.suppress(CorruptCheckpointError, FileNotFoundError):
                    found.append(Saved(path, read_root(path)))
    return sorted(found, key=lambda saved: (saved.root.saved_at_ns, saved.root.step))


def read_root(path: Path) -> RootManifest:
    """Returns the root manifest of a checkpoint.

    Raises:
        CorruptCheckpointError: It is damaged, or another save's.
        ForeignCheckpointError: It is of another format or version.
        FileNotFoundError: The save was never committed.
    """
    root = RootManifest.from_bytes(
        (path / ROOT_FILE).read_bytes(), str(path / ROOT_FILE)
    )
    match = _FOLDER.fullmatch(path.name)
    if match and (int(match[1]), match[2]) != (root.step, root.save_id):
        message = f"{path / ROOT_FILE} is that of step {root.step}, save {root.save_id}"
        raise CorruptCheckpointError(message)
    return root


def read_rank(path: Path, root: RootManifest, rank: int) -> RankManifest:
    """Returns a rank's manifest, checked against the root.

    Raises:
        CorruptCheckpointError: It is missing or damaged, or another save's.
    """
    entry = root.ranks[rank]
    file = path / entry.file
    try:
        text = file.read_bytes()
    except FileNotFoundError as error:
        message = f"{file} is missing"
        raise CorruptCheckpointError(message) from error
    if RankFile.of(rank, text) != entry:
        message = f"{file} is not what the checkpoint was committed with"
        raise CorruptCheckpointError(message)
    manifest = RankManifest.from_bytes(text, str(file))
    if (manifest.step, manifest.save_id, manifest.rank) != (
        root.step,
        root.save_id,
        rank,
    ):
        message = f"{file} is that of step {manifest.step}, rank {manifest.rank}"
        raise CorruptCheckpointError(message)
    return manifest


def remove(path: Path) -> None:
    """Deletes a checkpoint or what is left of a save, the root manifest first.

    Raises:
        StorageError: It cannot be deleted.
    """
    with _as_storage_error("delete", path):
        with contextlib.suppress(FileNotFoundError):
            (path / ROOT_FILE).unlink()
            _sync_folder(path)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def _create(file: Path) -> int:
    """Opens a new file, past the page cache where the file system has that."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(file, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(file, flags, 0o644)


def _write_small(file: Path, content: bytes) -> None:
    with _as_storage_error("write", file):
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            done = 0
            while done < len(content):
                done += os.write(fd, content[done:])
            os.fsync(fd)
        finally:
            os.close(fd)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _as_storage_error(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        message = f"cannot {action} {path}: {error.strerror or error}"
        raise StorageError(message) from error
