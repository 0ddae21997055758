"""Lists the checkpoints of a folder."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_checkpoint._saves import list_saved
from drivetrain_checkpoint._storage.open import open_storage, resolve

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["CheckpointInfo", "list_checkpoints"]


class CheckpointInfo(NamedTuple):
    """A committed checkpoint.

    Args:
        step: The step.
        job: The job that saved it.
        saved_at: When it was saved.
        world_size: How many ranks saved it.
        size_bytes: How long its files are together.
        url: Its folder.
    """

    step: int
    job: str
    saved_at: dt.datetime
    world_size: int
    size_bytes: int
    url: str


def list_checkpoints(
    folder: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[CheckpointInfo]:
    """Returns the committed checkpoints of a folder, the one saved last at the end.

    What is not committed, or whose root manifest is damaged, is left out.

    Args:
        folder: Where a checkpointer saves: a path or an URL.
        storage_options: For URLs, what fsspec is to know.

    Raises:
        StorageError: The storage fails.

    Example:
        >>> list_checkpoints("no/such/folder")
        []
    """
    storage = open_storage(resolve(folder), storage_options)
    return [
        CheckpointInfo(
            step=saved.root.step,
            job=saved.root.job,
            saved_at=dt.datetime.fromtimestamp(saved.root.saved_at_ns / 1e9, dt.UTC),
            world_size=saved.root.world_size,
            size_bytes=sum(storage.files(saved.name).values()),
            url=f"{storage.url}/{saved.name}",
        )
        for saved in list_saved(storage)
    ]
