"""Detection of a checkpoint's format, and how it is opened."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drivetrain_checkpoint._errors import ForeignCheckpointError
from drivetrain_checkpoint._formats.dcp_source import read_dcp
from drivetrain_checkpoint._formats.drivetrain_source import DrivetrainSource
from drivetrain_checkpoint._formats.safetensors_source import (
    INDEX_FILE,
    read_safetensors,
)
from drivetrain_checkpoint._formats.torch_source import TorchSource
from drivetrain_checkpoint._layout.manifest import (
    ROOT_FILE,
    is_manifest,
    rank_manifest_file,
)
from drivetrain_checkpoint._storage.open import resolve
from drivetrain_checkpoint._storage.open_checkpoint import open_checkpoint
from drivetrain_checkpoint._storage.protocol import parse_name
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from drivetrain_checkpoint._formats.source import TensorSource

Kind = Literal["drivetrain", "dcp", "safetensors", "torch"]
"""The formats that are read."""

_TORCH_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".tar"}


def detect(path: str | os.PathLike[str]) -> Kind:
    """Returns of which format a checkpoint is.

    Args:
        path: A folder or a file. An URL can only be of this package's own format.

    Returns:
        `drivetrain` for a checkpoint of this package, or a folder of them; `dcp` for a
        folder of torch's distributed checkpoint; `safetensors` for such a file, or a
        folder of them; `torch` for a file of `torch.save`.

    Raises:
        ForeignCheckpointError: It is of none of them; the message says what is there.
        CheckpointError: There is nothing.

    Example:
        >>> import tempfile, torch
        >>> file = Path(tempfile.mkdtemp()) / "state"
        >>> torch.save({"a": 1}, file)
        >>> detect(file)
        'torch'
    """
    if "://" in resolve(path):
        return "drivetrain"
    place = Path(path)
    if place.is_dir():
        return _detect_folder(place)
    if not place.exists():
        message = f"{path} is not there"
        raise CheckpointError(message)
    with place.open("rb") as file:
        start = file.read(16)
    if start.startswith(b"PK\x03\x04"):
        return "torch"
    if start[8:9] == b"{" or place.suffix == ".safetensors":
        return "safetensors"
    # Before torch 1.6 a file was a row of pickles, and began with that of a number.
    if start[:1] == pickle.PROTO and place.suffix in _TORCH_SUFFIXES:
        return "torch"
    message = (
        f"{path} is neither a safetensors file nor one of torch.save: it begins with "
        f"{start[:8]!r}"
    )
    raise ForeignCheckpointError(message)


def open_source(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> TensorSource:
    """Opens a checkpoint of any format.

    Args:
        path: The checkpoint, as for `detect`.
        step: Which one of a folder of checkpoints of this package; the newest by
            default.
        options: For URLs, what fsspec is to know.

    Raises:
        ForeignCheckpointError: It is of no format that is read.
        CheckpointError: It is missing or damaged.
    """
    kind = detect(path)
    if kind == "drivetrain":
        return DrivetrainSource(open_checkpoint(path, step, options))
    if step is not None:
        message = f"{path} is one checkpoint ({kind}): it has no steps to choose from"
        raise CheckpointError(message)
    if kind == "torch":
        return TorchSource(Path(path))
    return read_dcp(path) if kind == "dcp" else read_safetensors(path)


def _detect_folder(place: Path) -> Kind:
    names = sorted(entry.name for entry in place.iterdir())
    if any(parse_name(name) is not None for name in (place.resolve().name, *names)):
        return "drivetrain"
    # A checkpoint's folder may have been given another name.
    for name in (ROOT_FILE, rank_manifest_file(0)):
        if name in names and is_manifest(place / name):
            return "drivetrain"
    if ".metadata" in names:
        return "dcp"
    if INDEX_FILE in names or any(name.endswith(".safetensors") for name in names):
        return "safetensors"
    if any(name.endswith(".metadata") for name in names):
        message = (
            f"{place} was saved by DCP with use_collectives=False: it has an index for "
            "each rank and none for all, which is not read here"
        )
        raise ForeignCheckpointError(message)
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    message = f"{place} is no checkpoint of a known format; it has {shown or 'nothing'}"
    raise ForeignCheckpointError(message)
