from drivetrain_checkpoint._checkpointer import Checkpointer as Checkpointer
from drivetrain_checkpoint._errors import (
    CorruptCheckpointError as CorruptCheckpointError,
)
from drivetrain_checkpoint._errors import DaemonError as DaemonError
from drivetrain_checkpoint._errors import (
    ForeignCheckpointError as ForeignCheckpointError,
)
from drivetrain_checkpoint._errors import StorageError as StorageError
from drivetrain_checkpoint._formats.dcp_source import read_dcp as read_dcp
from drivetrain_checkpoint._formats.detect import detect as detect
from drivetrain_checkpoint._formats.export_safetensors import (
    export_safetensors as export_safetensors,
)
from drivetrain_checkpoint._formats.load import load as load
from drivetrain_checkpoint._formats.safetensors_source import (
    read_safetensors as read_safetensors,
)
from drivetrain_checkpoint._formats.source import TensorSource as TensorSource
from drivetrain_checkpoint._formats.torch_file import torch_load as torch_load
from drivetrain_checkpoint._formats.torch_file import torch_save as torch_save
from drivetrain_checkpoint._save.counts import SaveCounts as SaveCounts
from drivetrain_checkpoint._save.handle import SaveHandle as SaveHandle
from drivetrain_checkpoint._save.preemption import PreemptNotice as PreemptNotice
from drivetrain_checkpoint._storage.catalog import CheckpointInfo as CheckpointInfo
from drivetrain_checkpoint._storage.catalog import Keep as Keep
from drivetrain_checkpoint._storage.catalog import list_checkpoints as list_checkpoints
from drivetrain_checkpoint._storage.verify import Problem as Problem
from drivetrain_checkpoint._storage.verify import verify as verify
from drivetrain_checkpoint._version import __version__ as __version__
