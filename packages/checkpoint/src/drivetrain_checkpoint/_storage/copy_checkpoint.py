"""Copies a committed checkpoint to another storage, and verifies it on the way."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._layout.manifest import ROOT_FILE, RankFile, tensor_file
from drivetrain_checkpoint._storage.protocol import folder_name
from drivetrain_checkpoint._storage.write_rank import write_rank_aside
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._storage.checked_source import StorageSource
    from drivetrain_checkpoint._storage.open_checkpoint import CommittedCheckpoint
    from drivetrain_checkpoint._storage.protocol import Storage

_READ_BLOCKS = 32


def copy_checkpoint(
    checkpoint: CommittedCheckpoint,
    target: Storage,
    progress: Callable[[int, int], object] | None = None,
) -> str:
    """Copies a checkpoint; it is committed there when all of it is.

    Every block is compared with its checksum when it is read, and once more as it is
    written; what was written is not read back.

    Args:
        checkpoint: The checkpoint.
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
    root = checkpoint.root
    name = folder_name(root.step, root.save_id)
    if target.ensure_durable(name, ROOT_FILE):
        message = f"{target.url}/{name} is there already"
        raise CheckpointError(message)
    sources = [checkpoint.source(rank) for rank in range(root.world_size)]
    total = sum(source.manifest.size_bytes for source in sources)
    done = 0

    def read(source: StorageSource, view: memoryview) -> None:
        nonlocal done
        for start, size in source.spans(_READ_BLOCKS):
            view[start : start + size] = source.read(start, size)
            done += size
            if progress is not None:
                progress(done, total)

    for rank, source in enumerate(sources):
        manifest = dataclasses.replace(source.manifest, crc32c=())
        text = write_rank_aside(target, manifest, functools.partial(read, source))
        if RankFile.of(rank, text) != root.ranks[rank]:
            message = f"{target.url}/{name}/{tensor_file(rank)} is not what was read"
            raise StorageError(message)
    target.commit(name, ROOT_FILE, root.to_bytes())
    return f"{target.url}/{name}"
