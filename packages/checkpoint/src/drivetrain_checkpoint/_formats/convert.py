"""Conversion of a checkpoint of any format to another one."""

from __future__ import annotations

import secrets
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save

from drivetrain_checkpoint._formats.detect import open_source
from drivetrain_checkpoint._formats.drivetrain_source import DrivetrainSource
from drivetrain_checkpoint._formats.export_safetensors import export_safetensors
from drivetrain_checkpoint._formats.plain_values import entry_of_tensor, entry_of_value
from drivetrain_checkpoint._formats.source import bytes_of, read_tensor
from drivetrain_checkpoint._formats.torch_file import torch_save
from drivetrain_checkpoint._formats.write_checkpoint import write_checkpoint
from drivetrain_checkpoint._storage.atomic_write import sync_folder
from drivetrain_checkpoint._storage.open import open_storage, resolve
from drivetrain_checkpoint._storage.protocol import as_storage_error
from drivetrain_core import CheckpointError
from drivetrain_core.services.plain_json import to_json

if TYPE_CHECKING:
    import io
    import os
    from collections.abc import Callable, Mapping

    from drivetrain_checkpoint._formats.detect import Kind
    from drivetrain_checkpoint._formats.source import TensorSource

    Tell = Callable[[int, int], object]


def convert(
    checkpoint: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: Kind,
    *,
    step: int | None = None,
    job: str = "converted",
    options: Mapping[str, Any] | None = None,
    progress: Tell | None = None,
) -> str:
    """Writes a checkpoint of any format in another one; tensors keep their names.

    Args:
        checkpoint: The checkpoint.
        target: For `torch` a file, for the others a folder; neither may be there yet,
            but that of `drivetrain`, which takes another step.
        to: The format. Files of `safetensors` hold tensors only, so that plain data is
            left out; all tensors of `torch` are in memory at one time.
        step: Which checkpoint of a folder of them; for `drivetrain` also the step that
            it is given, if it has none.
        job: The job that a checkpoint of this package is said to be of.
        options: For URLs, what fsspec is to know.
        progress: Called with the bytes that were read and those that there are.

    Returns:
        What was written.

    Raises:
        CheckpointError: There is no such checkpoint, it is damaged, or the target is
            there already.
        StorageError: The storage fails.
    """
    if to == "safetensors":
        export_safetensors(
            checkpoint, target, step=step, storage_options=options, progress=progress
        )
        return str(target)
    try:
        source = open_source(checkpoint, step=step, options=options)
    except CheckpointError:
        if step is None or to != "drivetrain":
            raise
        # What has no steps is given this one.
        source = open_source(checkpoint, options=options)
        if isinstance(source, DrivetrainSource):
            raise
    reader = _Reader(source, progress)
    if to == "drivetrain":
        storage = open_storage(resolve(target), options)
        entries: Any
        if isinstance(source, DrivetrainSource):
            entries, number = source.entries, source.step
        else:
            entries, number = to_json(_entries(source)), step or 0
        name = write_checkpoint(
            storage,
            source.tensors.values(),
            entries,
            reader.fill,
            job=job,
            step=number,
        )
        return f"{storage.url}/{name}"
    place = Path(target)
    if place.exists():
        message = f"{place} is there already; take another name"
        raise CheckpointError(message)
    if to == "torch":
        values = source.values()
        torch_save({**{n: reader.tensor(n) for n in source.tensors}, **values}, place)
    else:
        _to_dcp(reader, place)
    return str(place)


class _Reader:
    """Reads whole tensors, and tells how far it is.

    Args:
        source: The checkpoint.
        progress: Whom it tells.
    """

    def __init__(self, source: TensorSource, progress: Tell | None) -> None:
        self.source = source
        self._progress = progress
        self._total = sum(
            torch.Size(spec.global_shape).numel() * spec.dtype.itemsize
            for spec in source.tensors.values()
        )
        self._done = 0

    def tensor(self, name: str) -> torch.Tensor:
        """Returns a tensor."""
        tensor = read_tensor(self.source, name)
        self._done += tensor.nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)
        return tensor

    def fill(self, name: str, target: memoryview) -> None:
        """Puts the bytes of a tensor in place."""
        content = bytes_of(self.tensor(name))
        torch.frombuffer(target, dtype=torch.uint8).copy_(content)


class _LazyPlanner(DefaultSavePlanner):
    """Reads each tensor when it is about to be written.

    Args:
        reader: Where from.
    """

    def __init__(self, reader: _Reader) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._reader = reader

    def resolve_data(self, write_item: Any) -> torch.Tensor | io.BytesIO:
        """Returns the tensor, or the value as bytes."""
        if write_item.type == WriteItemType.BYTE_IO:
            found: torch.Tensor | io.BytesIO = super().resolve_data(write_item)
            return found
        return self._reader.tensor(write_item.index.fqn)


def _to_dcp(reader: _Reader, place: Path) -> None:
    """Writes a folder of DCP aside, and renames it into place."""
    state: dict[str, Any] = {
        spec.name: torch.empty(spec.global_shape, dtype=spec.dtype, device="meta")
        for spec in reader.source.tensors.values()
    }
    state.update(reader.source.values())
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")
    with as_storage_error("write", place), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            save(
                state,
                storage_writer=FileSystemWriter(temporary, sync_files=True),
                planner=_LazyPlanner(reader),
                no_dist=True,
            )
            sync_folder(temporary)
            temporary.rename(place)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(place.resolve().parent)


def _entries(source: TensorSource) -> dict[str, Any]:
    entries: dict[str, Any] = {name: entry_of_tensor(name) for name in source.tensors}
    for name, value in source.values().items():
        entries.setdefault(name, entry_of_value(value))
    return entries
