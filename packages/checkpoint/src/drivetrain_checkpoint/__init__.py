"""Checkpoints in two stages: shared memory that outlives the trainer, then storage.

Importing this package does not import torch; the first use of a checkpointer does. The
daemon never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import (
    CorruptCheckpointError,
    DaemonError,
    ForeignCheckpointError,
    StorageError,
)
from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_checkpoint._checkpointer import Checkpointer
    from drivetrain_checkpoint._formats.dcp_source import read_dcp
    from drivetrain_checkpoint._formats.detect import detect
    from drivetrain_checkpoint._formats.export_safetensors import export_safetensors
    from drivetrain_checkpoint._formats.load import load
    from drivetrain_checkpoint._formats.safetensors_source import read_safetensors
    from drivetrain_checkpoint._formats.source import TensorSource
    from drivetrain_checkpoint._formats.torch_file import torch_load, torch_save
    from drivetrain_checkpoint._save.counts import SaveCounts
    from drivetrain_checkpoint._save.handle import SaveHandle
    from drivetrain_checkpoint._save.preemption import PreemptNotice
    from drivetrain_checkpoint._storage.catalog import (
        CheckpointInfo,
        Keep,
        list_checkpoints,
    )
    from drivetrain_checkpoint._storage.verify import Problem, verify
    from drivetrain_checkpoint._version import __version__

__all__ = [
    "CheckpointInfo",
    "Checkpointer",
    "CorruptCheckpointError",
    "DaemonError",
    "ForeignCheckpointError",
    "Keep",
    "PreemptNotice",
    "Problem",
    "SaveCounts",
    "SaveHandle",
    "StorageError",
    "TensorSource",
    "__version__",
    "detect",
    "export_safetensors",
    "list_checkpoints",
    "load",
    "read_dcp",
    "read_safetensors",
    "torch_load",
    "torch_save",
    "verify",
]

_HOMES = {
    "CheckpointInfo": "_storage.catalog",
    "Checkpointer": "_checkpointer",
    "Keep": "_storage.catalog",
    "PreemptNotice": "_save.preemption",
    "Problem": "_storage.verify",
    "SaveCounts": "_save.counts",
    "SaveHandle": "_save.handle",
    "TensorSource": "_formats.source",
    "__version__": "_version",
    "detect": "_formats.detect",
    "export_safetensors": "_formats.export_safetensors",
    "list_checkpoints": "_storage.catalog",
    "load": "_formats.load",
    "read_dcp": "_formats.dcp_source",
    "read_safetensors": "_formats.safetensors_source",
    "torch_load": "_formats.torch_file",
    "torch_save": "_formats.torch_file",
    "verify": "_storage.verify",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch, or takes time, when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
