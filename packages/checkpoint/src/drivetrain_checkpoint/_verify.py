"""Finds what is wrong with a checkpoint on storage, all of it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_checkpoint._errors import CorruptCheckpointError, ForeignCheckpointError
from drivetrain_checkpoint._manifest import ROOT_FILE, rank_manifest_file, tensor_file
from drivetrain_checkpoint._saves import read_root
from drivetrain_checkpoint._sources import StorageSource
from drivetrain_checkpoint._storage.open import open_storage, resolve

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from drivetrain_checkpoint._storage.protocol import Storage

__all__ = ["Problem", "located", "verify"]

_READ_BLOCKS = 64


class Problem(NamedTuple):
    """Something wrong with a checkpoint.

    Args:
        file: The file.
        because: What is wrong with it; damaged tensors are named.
    """

    file: str
    because: str


def located(
    checkpoint: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> tuple[Storage, str]:
    """Returns the storage that a checkpoint's folder is in, and its name there."""
    parent, _, name = resolve(checkpoint).rpartition("/")
    return open_storage(parent or "/", options), name


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
    storage, name = located(checkpoint, storage_options)
    try:
        root = read_root(storage, name)
    except FileNotFoundError:
        return [Problem(ROOT_FILE, "is missing: the save was never committed")]
    except (CorruptCheckpointError, ForeignCheckpointError) as error:
        return [Problem(ROOT_FILE, str(error))]
    problems = []
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
        step = _READ_BLOCKS * source.manifest.block_bytes
        for start in range(0, source.manifest.size_bytes, step):
            size = min(step, source.manifest.size_bytes - start)
            try:
                source.read(start, size)
            except CorruptCheckpointError as error:
                file = tensor_file(source.manifest.rank)
                problems.append(Problem(file, str(error)))
            done += size
            if progress is not None:
                progress(done, total)
    return problems
