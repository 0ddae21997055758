"""Opens the committed checkpoint that a folder names, with a step or by itself."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._arguments import count
from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._layout.entries import read_entries
from drivetrain_checkpoint._layout.manifest import ROOT_FILE, tensor_file
from drivetrain_checkpoint._layout.tensor_layout import Layout
from drivetrain_checkpoint._storage.catalog import newest, read_root, scan
from drivetrain_checkpoint._storage.checked_source import StorageSource
from drivetrain_checkpoint._storage.course import why_none
from drivetrain_checkpoint._storage.open import open_parent, open_storage, resolve
from drivetrain_checkpoint._storage.protocol import parse_name
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from drivetrain_checkpoint._layout.manifest import RootManifest
    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_core.services.packed_state import Entry


logger = logging.getLogger(__name__)

_SPARE_BYTES = 1 << 30


@dataclass(frozen=True)
class CommittedCheckpoint:
    """A committed checkpoint, found and ready to be read.

    Args:
        storage: The storage.
        name: Its folder there.
        root: Its root manifest.
    """

    storage: Storage
    name: str
    root: RootManifest

    @property
    def url(self) -> str:
        """The checkpoint's folder, as a user calls it."""
        return f"{self.storage.url}/{self.name}"

    def entries(self) -> dict[str, Entry]:
        """Returns the plain half of the state.

        Raises:
            CorruptCheckpointError: The manifest has none.
        """
        return read_entries(self.root.entries, self.url)

    @functools.cached_property
    def layout(self) -> Layout:
        """Who saved what.

        Raises:
            CorruptCheckpointError: The manifest does not say, or not of these files.
        """
        found = Layout.from_plain(self.root.layout, self.url)
        files = self.storage.files(self.name)
        sizes = [files.get(tensor_file(rank)) for rank in range(self.root.world_size)]
        # Nobody makes room for what cannot come; a file that is cut is told of by name.
        there = 2 * sum(size or 0 for size in sizes) + _SPARE_BYTES
        if found.size_bytes > there and None not in sizes:
            message = f"{self.url} has less than the {found.size_bytes:,} bytes it says"
            raise CorruptCheckpointError(message)
        return found

    @functools.cached_property
    def source(self) -> Callable[[int], StorageSource]:
        """Gives the part that a rank saved, each opened once."""
        return functools.cache(
            lambda rank: StorageSource.committed(
                self.storage, self.name, self.root, rank
            )
        )


def open_checkpoint(
    place: str | os.PathLike[str],
    step: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> CommittedCheckpoint:
    """Returns a committed checkpoint.

    Args:
        place: The folder of one checkpoint, or the one that a checkpointer saves to.
        step: Which one of the latter; the one that was saved last by default.
        options: For URLs, what fsspec is to know.

    Raises:
        TypeError: The step is no whole number.
        ValueError: It is negative.
        CheckpointError: There is none; the message lists what there is.
        CorruptCheckpointError: It is damaged, and was asked for; or no older one of the
            same course is whole. Else that is taken, and a warning says so.
        StorageError: The storage fails.
    """
    if step is not None:
        step = count("step", step, 0)
    url = resolve(place)
    around, name = open_parent(url, options)
    if parse_name(name) is not None:
        return _alone(around, name, step)
    storage = open_storage(url, options)
    saved, damaged = scan(storage)
    # A checkpoint whose folder was given another name is known by its manifest.
    if not saved and not damaged and around.exists(name, ROOT_FILE):
        return _alone(around, name, step)
    chosen = newest(saved, damaged, step)
    if chosen.passed_over and (chosen.save is None or step is not None):
        raise CorruptCheckpointError(why_none(chosen))
    if chosen.save is None:
        steps = ", ".join(str(one.root.step) for one in saved[-10:]) or "none at all"
        message = f"{url} has no checkpoint"
        message += "" if step is None else f" of step {step}; it has {steps}"
        if around.exists(name, ".metadata"):
            message += "; what it has is torch's own: FileSystemReader reads it"
        raise CheckpointError(message)
    if chosen.passed_over:
        passed_over = "; ".join(save.problem for save in chosen.passed_over)
        logger.warning("step %d is taken: %s", chosen.save.step, passed_over)
    found = next(one for one in saved if one.root.save_id == chosen.save.save_id)
    return CommittedCheckpoint(storage, found.name, found.root)


def _alone(storage: Storage, name: str, step: int | None) -> CommittedCheckpoint:
    """Returns the checkpoint in a folder of its own."""
    url = f"{storage.url}/{name}"
    try:
        root = read_root(storage, name)
    except FileNotFoundError as error:
        message = f"{url} has no {ROOT_FILE}: the save was never committed"
        raise CheckpointError(message) from error
    if step not in {None, root.step}:
        message = f"{url} is that of step {root.step}, not {step}"
        raise CheckpointError(message)
    return CommittedCheckpoint(storage, name, root)
