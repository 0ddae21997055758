"""Reads torch's distributed checkpoints without running what a file says.

DCP keeps its index (`.metadata`) as a pickle, and loads plain values with an unpickler
that runs code. Here the index goes through an unpickler that knows the few classes of
an index, and values are loaded with `weights_only`.
"""

from __future__ import annotations

import importlib
import pickle
import tomllib
from enum import Enum, EnumType
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)

from drivetrain_core._errors import CheckpointError
from drivetrain_core.services.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import io
    from collections.abc import Collection

    from torch.distributed.checkpoint.planner import ReadItem

_ALLOWED: dict[str, list[str]] = tomllib.loads(
    files(__package__).joinpath("safe_dcp.toml").read_text("utf-8")
)


class _IndexUnpickler(pickle.Unpickler):
    """Builds the classes of an index, and refuses any other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns an allowed class or a dtype."""
        if (module, name) == ("builtins", "getattr"):
            return _member
        if name in _ALLOWED.get(module, ()):
            if module == "pathlib._local":  # as Python 3.13 writes it
                module = "pathlib"
            return getattr(importlib.import_module(module), name)
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        message = f"it asks for {module}.{name}, which no index of a checkpoint needs"
        raise pickle.UnpicklingError(message)


def _member(kind: object, name: object) -> Enum:
    """Returns a member of an allowed enumeration.

    Some releases of Python pickle a member as `getattr(kind, name)`; what else that
    could reach is refused.
    """
    if isinstance(kind, EnumType) and isinstance(name, str):
        allowed = kind.__qualname__ in _ALLOWED.get(kind.__module__, ())
        if allowed and name in kind.__members__:
            found: Enum = kind.__members__[name]
            return found
    message = f"it asks for {name!r} of {kind!r}, which no index of a checkpoint needs"
    raise pickle.UnpicklingError(message)


class _Reader(FileSystemReader):
    """A file-system reader whose index is read by the caller, safely."""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """Returns the index of the checkpoint."""
        del args, kwargs
        return read_index(Path(self.path))


class _Planner(DefaultLoadPlanner):
    """Loads tensors in place, and plain values with `weights_only`."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Puts a plain value in place of the one in the state."""
        loaded = torch.load(value, weights_only=True)
        self.state_dict[read_item.dest_index.fqn] = loaded


def read_index(path: Path) -> Metadata:
    """Returns the index of a checkpoint.

    Args:
        path: The folder of the checkpoint.

    Raises:
        CheckpointError: It is missing, is no index, or holds more than an index does.
    """
    try:
        with (path / ".metadata").open("rb") as file:
            metadata: Metadata = _IndexUnpickler(file).load()
        specs_of(metadata)  # which an index has, whose parts are whole
    except FileNotFoundError as error:
        message = f"{path} has no index (.metadata)"
        raise CheckpointError(message) from error
    # Malformed pickles raise almost anything; none of it means more than this.
    except Exception as error:
        message = f"the index (.metadata) of {path} is not safe to read: {error}"
        raise CheckpointError(message) from error
    if metadata.storage_meta is None:
        metadata.storage_meta = StorageMeta()
    return metadata


def specs_of(index: Metadata) -> dict[str, TensorSpec]:
    """Returns the tensors that an index lists, by name."""
    return {
        name: TensorSpec(
            name=name, global_shape=tuple(saved.size), dtype=saved.properties.dtype
        )
        for name, saved in index.state_dict_metadata.items()
        if isinstance(saved, TensorStorageMetadata)
    }


def read_into(
    path: Path, state: dict[str, object], index: Metadata, files: Collection[str]
) -> None:
    """Reads what is in a flat state from a checkpoint, without communication.

    Args:
        path: The folder of the checkpoint.
        state: Tensors to be written in place, and other values to be replaced.
        index: The index of the checkpoint.
        files: The names of the files that may be read.

    Raises:
        CheckpointError: The index refers to other files.
    """
    for info in (index.storage_data or {}).values():
        if info.relative_path not in files:
            message = (
                f"{path} refers to {info.relative_path!r}, which is not part of it"
            )
            raise CheckpointError(message)
    reader = _Reader(path)
    planner = _Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(state, index, is_coordinator=True)
    reader.set_up_storage_reader(index, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()
