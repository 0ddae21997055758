"""The exceptions of this package.

Each inherits core's `CheckpointError`, which is an `OSError`:

    CheckpointError
     |- CorruptCheckpointError     its bytes are not those that were saved
     |- ForeignCheckpointError     it is of another format, version or job
     |- StorageError               the storage refused or failed
     `- DaemonError                the daemon of this node does not answer
"""

from drivetrain_core import CheckpointError


class CorruptCheckpointError(CheckpointError):
    """A file of a checkpoint is missing, cut, or not what was saved; it is named."""


class ForeignCheckpointError(CheckpointError):
    """A folder or file is not a checkpoint of this format, version, or job."""


class StorageError(CheckpointError):
    """The storage refused or failed; earlier checkpoints are as they were."""


class DaemonError(CheckpointError):
    """The daemon of this node cannot be started, or does not answer."""
