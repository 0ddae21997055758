"""Checkpoints of Lightning's trainer, in two stages.

Import this module to use it: it imports Lightning.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from drivetrain_checkpoint._checkpointer import Checkpointer
from drivetrain_checkpoint._layout.manifest import ROOT_FILE
from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_checkpoint._storage.open import open_storage, resolve
from drivetrain_checkpoint.adapters._objects import Objects, each, hold, release
from drivetrain_core import CheckpointError

try:
    from lightning.fabric.utilities.cloud_io import get_filesystem
    from lightning.pytorch.plugins.io import CheckpointIO, TorchCheckpointIO
except ImportError as error:
    message = "needs Lightning: pip install 'drivetrain-checkpoint[lightning]'"
    raise ImportError(message) from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_checkpoint._save.handle import SaveHandle

__all__ = ["TwoStageCheckpointIO"]

logger = logging.getLogger(__name__)

_ENTRY = "checkpoint"
_SOUGHT = ("last", "hpc_ckpt")
"""What Lightning looks for by name, and goes on from: no folder is made ahead of it."""


class TwoStageCheckpointIO(CheckpointIO):  # type: ignore[misc]
    """Saves Lightning's checkpoints into memory first, and then to storage.

    The trainer goes on when the checkpoint lies in memory; the daemon of the node
    brings it to storage, also when the trainer is killed. A path such as
    `epoch=1-step=10.ckpt` becomes a folder with a checkpoint in it, which `verify` and
    `list_checkpoints` know. A path that is saved again, as `last.ckpt` is, holds the old
    checkpoint until the new one is whole. Old ones are removed when all that was saved
    before is durable.

    Lightning calls `save_checkpoint` on the first rank and `load_checkpoint` on all.
    Strategies that write sharded checkpoints of their own (FSDP with
    `state_dict_type="sharded"`, DeepSpeed) do not use it.

    Not thread-safe.

    Args:
        job: The job's name, for those that save to the same folder at the same time.
        objects: What becomes of hyperparameters, and states of callbacks, that are
            neither tensors nor plain data: an error that names them, or a pickle.
        timeout_s: How long storage may make no progress before a save fails.
        memory_s: How long the daemon keeps memory for a job that nobody runs.
        storage_options: For URLs, what fsspec is to know.

    Example:
        >>> import tempfile
        >>> io = TwoStageCheckpointIO()
        >>> path = f"{tempfile.mkdtemp()}/epoch=1-step=10.ckpt"
        >>> io.save_checkpoint({"state_dict": {"w": torch.ones(2)}, "epoch": 1}, path)
        >>> io.load_checkpoint(path)
        {'state_dict': {'w': tensor([1., 1.])}, 'epoch': 1}
        >>> io.teardown()
    """

    def __init__(
        self,
        *,
        job: str = "lightning",
        objects: Objects = "refuse",
        timeout_s: float = 600.0,
        memory_s: float = 3600.0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts nothing."""
        self._objects: Objects = objects
        self._storage_options = dict(storage_options or {})
        self._options: dict[str, Any] = {
            "job": job,
            "keep": 1,
            "timeout_s": timeout_s,
            "memory_s": memory_s,
            "storage_options": self._storage_options,
        }
        self._savers: dict[str, Checkpointer] = {}
        self._open: list[SaveHandle] = []
        self._doomed: dict[str, list[SaveHandle]] = {}

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | os.PathLike[str],
        storage_options: Any | None = None,
    ) -> None:
        """Copies a checkpoint into memory; when it returns, training may go on.

        Args:
            checkpoint: What Lightning saves.
            path: Where it goes.
            storage_options: Must be None: they are given to the constructor.

        Raises:
            TypeError: The checkpoint holds an object that it must not, or storage
                options are given.
            FileExistsError: There is a file at the path.
        """
        if storage_options is not None:
            message = "storage_options go to TwoStageCheckpointIO(storage_options=...)"
            raise TypeError(message)
        folder, name = _split(path)
        if os.path.isfile(path):  # noqa: PTH113 (an URL is no Path)
            message = f"{os.fspath(path)} is a file, and a checkpoint is a folder"
            raise FileExistsError(message)
        state = hold(checkpoint, _ENTRY, self._objects)
        if folder not in self._savers:
            self._savers[folder] = Checkpointer(
                folder, process_group="self", **self._options
            )
        step = int(checkpoint.get("global_step", 0))
        handle = self._savers[folder].save(step, {_ENTRY: state}, under=name)
        self._open.append(handle)
        self._doomed.pop(resolve(path), None)
        is_sought = any(part in name for part in _SOUGHT)
        if "://" not in folder and not is_sought:
            # Lightning asks whether a path is taken before storage has it.
            Path(folder, name).mkdir(parents=True, exist_ok=True)
        self._sweep()

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Returns a checkpoint, from memory if it is there; all ranks call it together.

        Each may ask for another one.

        A file, as Lightning itself saves it, is read as Lightning does.

        Args:
            path: Where it was saved.
            map_location: The device that tensors come to, if it is a device or its
                name; the CPU otherwise.
            weights_only: Whether pickled objects are refused; None is as the
                constructor's `objects` says.

        Raises:
            CheckpointError: There is none, or it holds pickles that are not trusted.
            CorruptCheckpointError: It is damaged.
        """
        paths = RankGroup().all_gather(resolve(path))
        if os.path.isfile(path):  # noqa: PTH113 (an URL is no Path)
            there = TorchCheckpointIO().load_checkpoint(
                path, map_location, weights_only
            )
            return dict(there)
        folder, name = _split(path)
        # Each rank may ask for another one: the best by a metric of its own.
        group: Literal["self"] | None = "self" if len(set(paths)) > 1 else None
        reader = Checkpointer(folder, process_group=group, **self._options)
        runs_already = reader.has_daemon()
        state: dict[str, Any] = {_ENTRY: None}
        try:
            reader.restore(state, under=name)
        finally:
            if not runs_already:
                reader.stop_daemon()
        trusted = (
            self._objects == "pickle" if weights_only is None else not weights_only
        )
        found: dict[str, Any] = release(state[_ENTRY], _ENTRY, trusted=trusted)
        if isinstance(map_location, str | torch.device):
            device = map_location
            found = each(found, _ENTRY, lambda leaf, _: _moved(leaf, device))
        return found

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint, as soon as those saved before this call are durable.

        Args:
            path: Where it was saved.
        """
        self._doomed[resolve(path)] = list(self._open)
        self._sweep()

    def teardown(self) -> None:
        """Waits until all is durable, removes what is to be removed, ends the daemon.

        Raises:
            StorageError: A save has failed.
        """
        try:
            for handle in list(self._open):
                self._open.remove(handle)
                handle.wait()
            self._sweep()
        finally:
            for saver in self._savers.values():
                saver.stop_daemon()
            self._savers.clear()

    def _sweep(self) -> None:
        """Removes what may go by now."""
        self._open = [handle for handle in self._open if not handle.durable]
        for url, before in list(self._doomed.items()):
            if all(handle.durable for handle in before):
                del self._doomed[url]
                self._remove(url)

    def _remove(self, url: str) -> None:
        try:
            storage = open_storage(url, self._storage_options)
            for name in storage.names():
                storage.remove(name, ROOT_FILE)
            files = get_filesystem(url, **self._storage_options)
            if files.exists(url):
                files.rm(url, recursive=True)
        # Old checkpoints that stay do no harm.
        except (CheckpointError, OSError) as error:
            logger.warning("an old checkpoint stays: %s", error)


def _split(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Returns the folder and the name of a checkpoint, where its links lead to."""
    folder, _, name = resolve(path).rpartition("/")
    return folder, name


def _moved(leaf: object, device: str | torch.device) -> object:
    return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf
