"""What the package raises.

DrivetrainError
├── MemoryUseError    (RuntimeError)  the allocator is used in a way that it refuses
├── DeviceError       (RuntimeError)  the device's driver refuses what should work
├── DeviceMemoryError (MemoryError)   a request does not fit, whatever is joined
└── TraceError        (ValueError)    a trace or a snapshot cannot be read
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from drivetrain_core import DrivetrainError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable


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


def refused(what: str, instead: str) -> Callable[..., NoReturn]:
    """Returns a function that raises MemoryUseError: it cannot be recorded."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        message = f"{what} cannot be recorded: {instead}"
        raise MemoryUseError(message) from None

    return refuse
