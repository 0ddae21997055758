"""Memory for PyTorch training without fragmentation.

Importing this package does not import torch; recording a trace does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export
from drivetrain_memory._errors import (
    DeviceError,
    DeviceMemoryError,
    MemoryUseError,
    TraceError,
)

if TYPE_CHECKING:
    from drivetrain_memory._replay import Replayed, replay, smallest_capacity
    from drivetrain_memory._version import __version__
    from drivetrain_memory.trace._format import Trace
    from drivetrain_memory.trace._record import Recorder, record

__all__ = [
    "DeviceError",
    "DeviceMemoryError",
    "MemoryUseError",
    "Recorder",
    "Replayed",
    "Trace",
    "TraceError",
    "__version__",
    "record",
    "replay",
    "smallest_capacity",
]

_HOMES = {
    "__version__": "_version",
    "Recorder": "trace._record",
    "Replayed": "_replay",
    "Trace": "trace._format",
    "record": "trace._record",
    "replay": "_replay",
    "smallest_capacity": "_replay",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch, or takes time, when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
