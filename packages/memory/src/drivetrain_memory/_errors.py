"""What the package raises.

DrivetrainError
├── MemoryUseError    (RuntimeError)  the allocator is used in a way that it refuses
├── DeviceError       (RuntimeError)  the device's driver refuses what should work
├── DeviceMemoryError (MemoryError)   a request does not fit, whatever is joined
└── TraceError        (ValueError)    a trace or a snapshot cannot be read
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import DrivetrainError

if TYPE_CHECKING:
    import os


class MemoryUseError(DrivetrainError, RuntimeError):
    """The allocator is used in a way that it refuses."""


class DeviceError(DrivetrainError, RuntimeError):
    """The device's driver refuses what should work."""


class DeviceMemoryError(DrivetrainError, MemoryError):
    """A request does not fit, whatever is joined."""


class TraceError(DrivetrainError, ValueError):
    """A trace or a snapshot cannot be read.

    Args:
        path: The file.
        because: What is wrong with it.
    """

    def __init__(self, path: str | os.PathLike[str], because: str) -> None:
        """Says which file, and why."""
        super().__init__(f"{path} cannot be read: {because}")
        self.path = path
        self.because = because
