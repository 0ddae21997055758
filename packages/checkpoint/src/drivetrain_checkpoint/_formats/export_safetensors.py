"""Export of a checkpoint's tensors to safetensors files, as Hugging Face has them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from drivetrain_checkpoint._formats.detect import open_source
from drivetrain_checkpoint._formats.safetensors_source import INDEX_FILE, SINGLE_FILE
from drivetrain_checkpoint._formats.source import bytes_of, read_tensor
from drivetrain_checkpoint._layout.partition import CODES
from drivetrain_checkpoint._layout.safetensors_layout import plan_safetensors
from drivetrain_checkpoint._storage.atomic_write import atomic_write, sync_folder
from drivetrain_checkpoint._storage.protocol import as_storage_error
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from drivetrain_checkpoint._formats.source import TensorSource


class _Part(NamedTuple):
    """A tensor on its way.

    Args:
        name: Its name in the file.
        source: Its name in the checkpoint.
        dtype: The type of its elements in the file.
        shape: Its shape.
    """

    name: str
    source: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """How long it is in the file."""
        return self.dtype.itemsize * math.prod(self.shape)


def export_safetensors(
    checkpoint: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = 5_000_000_000,
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[Path]:
    """Writes a checkpoint as safetensors files that Hugging Face's libraries load.

    It takes as much memory as the largest tensor, and 32 MiB. Each file appears
    whole and durable, and the index that names them comes last.

    Args:
        checkpoint: A checkpoint of any format that `load` reads.
        folder: Where the files go; it must not hold such files yet.
        prefix: Only tensors whose names begin with this are written, without it; such as
            `model.`.
        dtype: What floating-point tensors are cast to; None leaves them as they are.
        max_shard_bytes: How long a file may be; a tensor that is longer has its own.
        step: Which checkpoint of a folder of them; the one that was saved last by
            default.
        storage_options: For URLs, what fsspec is to know.
        progress: Called with the bytes that were written and those that there are.

    Returns:
        Where the tensors are now. It is `model.safetensors`, or several files that
        `model.safetensors.index.json` beside them names.

    Raises:
        CheckpointError: There is no such checkpoint or tensor, it is damaged, or the
            folder holds such files.
        StorageError: The disk is full, or fails.
        ValueError: `max_shard_bytes` is less than 1.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp())
        >>> torch.save({"model": {"weight": torch.ones(2)}, "epoch": 3}, place / "a.pt")
        >>> (file,) = export_safetensors(place / "a.pt", place / "out", prefix="model.")
        >>> from drivetrain_checkpoint import read_safetensors
        >>> file.name, list(read_safetensors(file).tensors)
        ('model.safetensors', ['weight'])
    """
    if max_shard_bytes < 1:
        message = f"max_shard_bytes must be at least 1, got {max_shard_bytes}"
        raise ValueError(message)
    source = open_source(checkpoint, step=step, options=storage_options)
    parts = _parts(source, prefix or "", dtype)
    place = Path(folder)
    with as_storage_error("make", place):
        place.mkdir(parents=True, exist_ok=True)
        sync_folder(place.resolve().parent)
    there = sorted(p.name for p in place.iterdir() if ".safetensors" in p.suffixes)
    if there or (place / INDEX_FILE).exists():
        message = f"{place} holds {', '.join(there[:3])} already; take an empty folder"
        raise CheckpointError(message)
    shards = _shards(parts, max_shard_bytes)
    total = len(shards)
    names = [
        f"model-{number:05d}-of-{total:05d}.safetensors" if total > 1 else SINGLE_FILE
        for number in range(1, total + 1)
    ]
    weight_map: dict[str, str] = {}
    num_bytes = sum(part.size_bytes for part in parts)
    done = 0
    for name, shard in zip(names, shards, strict=True):
        with atomic_write(place / name) as file:
            layout = plan_safetensors(
                ((part.name, CODES[part.dtype], part.shape) for part in shard),
                align_bytes=8,
                metadata={"format": "pt"},
            )
            file.write(layout.header)
            by_name = {part.name: part for part in shard}
            weight_map |= dict.fromkeys(by_name, name)
            for slot in layout.slots:
                part = by_name[slot.name]
                tensor = read_tensor(source, part.source, part.dtype)
                file.write(bytes_of(tensor).numpy().data)
                done += slot.size_bytes
                if progress is not None:
                    progress(done, num_bytes)
    if total > 1:
        index = {
            "metadata": {"total_size": num_bytes},
            "weight_map": dict(sorted(weight_map.items())),
        }
        with atomic_write(place / INDEX_FILE) as file:
            file.write(json.dumps(index, indent=2).encode() + b"\n")
    return [place / name for name in names]


def _parts(source: TensorSource, prefix: str, dtype: torch.dtype | None) -> list[_Part]:
    """Returns what is written of a checkpoint.

    Raises:
        CheckpointError: Nothing is, or something cannot be.
    """
    found = []
    for name, spec in source.tensors.items():
        if name.startswith(prefix) and name != prefix:
            casts = dtype is not None and spec.dtype.is_floating_point
            chosen = dtype if casts and dtype is not None else spec.dtype
            found.append(
                _Part(name.removeprefix(prefix), name, chosen, spec.global_shape)
            )
    none = torch.complex128  # It would be read as twice as many real numbers.
    unknown = [
        f"{p.source} ({p.dtype})"
        for p in found
        if p.dtype not in CODES or p.dtype == none
    ]
    if unknown:
        message = f"safetensors files cannot hold {', '.join(unknown[:5])}"
        raise CheckpointError(message)
    if not found:
        keys = sorted({name.partition(".")[0] for name in source.tensors})[:5]
        message = f"{source.where} has no tensor {prefix}*; it has {', '.join(keys)}"
        raise CheckpointError(message)
    return found


def _shards(parts: Iterable[_Part], max_bytes: int) -> list[list[_Part]]:
    """Returns the parts of each file, in their order."""
    shards: list[list[_Part]] = [[]]
    size = 0
    for part in parts:
        if shards[-1] and size + part.size_bytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(part)
        size += part.size_bytes
    return shards
