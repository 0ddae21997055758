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
    from drivetrain_checkpoint._counts import SaveCounts
    from drivetrain_checkpoint._export import export_safetensors
    from drivetrain_checkpoint._foreign.dcp import read_dcp
    from drivetrain_checkpoint._foreign.detect import detect
    from drivetrain_checkpoint._foreign.safetensors import read_safetensors
    from drivetrain_checkpoint._foreign.source import TensorSource
    from drivetrain_checkpoint._handle import SaveHandle
    from drivetrain_checkpoint._listing import CheckpointInfo, list_checkpoints
    from drivetrain_checkpoint._load import load
    from drivetrain_checkpoint._preempt import PreemptNotice
    from drivetrain_checkpoint._saves import Keep
    from drivetrain_checkpoint._torch_file import torch_load, torch_save
    from drivetrain_checkpoint._verify import Problem, verify
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
    "CheckpointInfo": "_listing",
    "Checkpointer": "_checkpointer",
    "Keep": "_saves",
    "PreemptNotice": "_preempt",
    "Problem": "_verify",
    "SaveCounts": "_counts",
    "SaveHandle": "_handle",
    "TensorSource": "_foreign.source",
    "__version__": "_version",
    "detect": "_foreign.detect",
    "export_safetensors": "_export",
    "list_checkpoints": "_listing",
    "load": "_load",
    "read_dcp": "_foreign.dcp",
    "read_safetensors": "_foreign.safetensors",
    "torch_load": "_torch_file",
    "torch_save": "_torch_file",
    "verify": "_verify",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch, or takes time, when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
