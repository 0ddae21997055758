"""Copies a committed checkpoint to another storage, and verifies it on the way."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._manifest import ROOT_FILE, rank_manifest_file, tensor_file
from drivetrain_checkpoint._storage.protocol import as_storage_error, folder_name
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._pick import Picked
    from drivetrain_checkpoint._storage.protocol import Storage

__all__ = ["copy_checkpoint"]

_READ_BLOCKS = 32
_NUM_WRITERS = 2


def copy_checkpoint(
    picked: Picked,
    target: Storage,
    progress: Callable[[int, int], object] | None = None,
) -> str:
    """Copies a checkpoint; it is committed there when all of it is.

    Every block is compared with its checksum when it is read, and once more as it is
    written; what was written is not read back.

    Args:
        picked: The checkpoint.
        target: Where it goes.
        progress: Called with the bytes that were copied and those that there are.

    Returns:
        The checkpoint's folder, as a user calls it.

    Raises:
        CheckpointError: It is there already.
        CorruptCheckpointError: It is damaged. Nothing is committed.
        StorageError: A storage fails.
    """
    # By its proper name, also where its folder was given another.
    root = picked.root
    name = folder_name(root.step, root.save_id)
    if target.settle(name, ROOT_FILE):
        message = f"{target.url}/{name} is there already"
        raise CheckpointError(message)
    sources = [picked.sources()(rank) for rank in range(root.world_size)]
    total = sum(source.manifest.size_bytes for source in sources)
    done = 0
    for rank, source in enumerate(sources):
        manifest = source.manifest
        size = -(-manifest.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with tempfile.TemporaryFile() as file:
            with as_storage_error("make", "a temporary file"):
                os.posix_fallocate(file.fileno(), 0, size)
            memory = mmap.mmap(file.fileno(), size)
            view = memoryview(memory)
            step = _READ_BLOCKS * manifest.block_bytes
            for start in range(0, manifest.size_bytes, step):
                end = min(start + step, manifest.size_bytes)
                view[start:end] = source.read(start, end - start)
                done += end - start
                if progress is not None:
                    progress(done, total)
            sums = target.write(
                name,
                tensor_file(rank),
                _native.address_of(memory),
                manifest.size_bytes,
                _NUM_WRITERS,
                _native.Progress(),
            )
        if tuple(sums) != manifest.crc32c:
            message = f"{target.url}/{name}/{tensor_file(rank)} is not what was read"
            raise StorageError(message)
        text = picked.storage.read(picked.name, rank_manifest_file(rank))
        target.write_small(name, rank_manifest_file(rank), text)
    target.commit(name, ROOT_FILE, root.to_bytes())
    return f"{target.url}/{name}"
