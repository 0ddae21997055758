"""Verification of a checkpoint on storage, which finds all that is wrong at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_checkpoint._errors import CorruptCheckpointError, ForeignCheckpointError
from drivetrain_checkpoint._layout.manifest import (
    ROOT_FILE,
    rank_manifest_file,
    tensor_file,
)
from drivetrain_checkpoint._layout.tensor_layout import Layout
from drivetrain_checkpoint._storage.catalog import read_root
from drivetrain_checkpoint._storage.checked_source import StorageSource
from drivetrain_checkpoint._storage.open import open_parent, resolve

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

_READ_BLOCKS = 64


class Problem(NamedTuple):
    """Something wrong with a checkpoint.

    Args:
        file: The file.
        because: What is wrong with it; damaged tensors are named.
    """

    file: str
    because: str


def verify(
    checkpoint: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[Problem]:
    """Compares every byte of a checkpoint with its checksums.

    Args:
        checkpoint: The folder of one checkpoint, a path or an URL.
        storage_options: For URLs, what fsspec is to know.
        progress: Called with the bytes that were read and those that there are.

    Returns:
        All that is wrong with it; empty if it is whole.

    Raises:
        StorageError: The storage fails.
    """
    storage, name = open_parent(resolve(checkpoint), storage_options)
    try:
        root = read_root(storage, name)
    except FileNotFoundError:
        return [Problem(ROOT_FILE, "is missing: the save was never committed")]
    except (CorruptCheckpointError, ForeignCheckpointError) as error:
        return [Problem(ROOT_FILE, str(error))]
    problems = []
    try:
        Layout.from_plain(root.layout)
    except CorruptCheckpointError as error:
        problems.append(Problem(ROOT_FILE, str(error)))
    sources = []
    for rank in range(root.world_size):
        try:
            sources.append(StorageSource.committed(storage, name, root, rank))
        except (CorruptCheckpointError, ForeignCheckpointError) as error:
            said = str(error)
            files = (rank_manifest_file(rank), tensor_file(rank))
            problems.append(
                Problem(next((f for f in files if f in said), files[0]), said)
            )
    total = sum(source.manifest.size_bytes for source in sources)
    done = 0
    for source in sources:
        for start, size in source.spans(_READ_BLOCKS):
            try:
                source.read(start, size)
            except CorruptCheckpointError as error:
                file = tensor_file(source.manifest.rank)
                problems.append(Problem(file, str(error)))
            done += size
            if progress is not None:
                progress(done, total)
    return problems
