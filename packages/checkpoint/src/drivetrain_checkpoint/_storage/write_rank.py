"""Writes a rank's part of a checkpoint: its file of tensors, then its manifest."""

from __future__ import annotations

import dataclasses
import mmap
import os
import tempfile
from typing import TYPE_CHECKING

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._layout.manifest import rank_manifest_file, tensor_file
from drivetrain_checkpoint._storage.protocol import as_storage_error, folder_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._layout.manifest import RankManifest
    from drivetrain_checkpoint._native import Progress
    from drivetrain_checkpoint._storage.protocol import Storage

_NUM_WRITERS = 2


def write_rank(
    storage: Storage,
    manifest: RankManifest,
    memory: memoryview,
    num_threads: int,
    progress: Progress,
    holds: Callable[[], bool] = lambda: True,
) -> bytes:
    """Writes a rank's part from memory, and returns its manifest with checksums.

    Args:
        storage: The storage.
        manifest: The manifest, without checksums.
        memory: The content of the file.
        num_threads: How many threads write.
        progress: How far it is, and whether it is to stop.
        holds: Whether the memory is still that of the save; another may be under way.

    Raises:
        StorageError: The storage fails, or the save was given up.
    """
    name = folder_name(manifest.step, manifest.save_id)
    file = tensor_file(manifest.rank)
    sums = storage.write(name, file, memory, num_threads, progress)
    if progress.stop or not holds():
        message = "it was given up"
        raise StorageError(message)
    text = dataclasses.replace(manifest, crc32c=tuple(sums)).to_bytes()
    storage.write_small(name, rank_manifest_file(manifest.rank), text)
    return text


def write_rank_aside(
    storage: Storage, manifest: RankManifest, fill: Callable[[memoryview], object]
) -> bytes:
    """Writes a rank's part that is put together in a temporary file.

    So it takes little memory.

    Args:
        storage: The storage.
        manifest: The manifest, without checksums.
        fill: Puts the content of the file in place.

    Raises:
        StorageError: The storage fails, or there is no room for a temporary file.
    """
    # Direct writes read whole pages.
    size = -(-manifest.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    with tempfile.TemporaryFile() as file:
        with as_storage_error("make", "a temporary file"):
            os.posix_fallocate(file.fileno(), 0, size)
        memory = memoryview(mmap.mmap(file.fileno(), size))
        fill(memory)
        whole, progress = memory[: manifest.size_bytes], _native.Progress()
        return write_rank(storage, manifest, whole, _NUM_WRITERS, progress)
