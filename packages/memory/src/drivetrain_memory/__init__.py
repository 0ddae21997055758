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
    from drivetrain_memory._compare import Comparison, compare
    from drivetrain_memory._enable import enable, is_enabled, pool
    from drivetrain_memory._plot import plot_snapshot, plot_trace
    from drivetrain_memory._replay import (
        Replayed,
        largest_batch,
        replay,
        segment_events,
        smallest_capacity,
    )
    from drivetrain_memory._snapshot import (
        keep_history,
        save_snapshot,
        snapshot,
        snapshot_at_peak,
    )
    from drivetrain_memory._stats import Stats, stats
    from drivetrain_memory._validate import Validation, validate
    from drivetrain_memory._version import __version__
    from drivetrain_memory.trace._batch import scalable
    from drivetrain_memory.trace._format import Trace
    from drivetrain_memory.trace._record import Recorder, record
    from drivetrain_memory.trace._snapshot import from_snapshot, load_snapshot

__all__ = [
    "Comparison",
    "DeviceError",
    "DeviceMemoryError",
    "MemoryUseError",
    "Recorder",
    "Replayed",
    "Stats",
    "Trace",
    "TraceError",
    "Validation",
    "__version__",
    "compare",
    "enable",
    "from_snapshot",
    "is_enabled",
    "keep_history",
    "largest_batch",
    "load_snapshot",
    "plot_snapshot",
    "plot_trace",
    "pool",
    "record",
    "replay",
    "save_snapshot",
    "scalable",
    "segment_events",
    "smallest_capacity",
    "snapshot",
    "snapshot_at_peak",
    "stats",
    "validate",
]

_MODULES = {
    "_compare": ("Comparison", "compare"),
    "_enable": ("enable", "is_enabled", "pool"),
    "_plot": ("plot_snapshot", "plot_trace"),
    "_replay": (
        "Replayed",
        "largest_batch",
        "replay",
        "segment_events",
        "smallest_capacity",
    ),
    "_snapshot": ("keep_history", "save_snapshot", "snapshot", "snapshot_at_peak"),
    "_stats": ("Stats", "stats"),
    "_validate": ("Validation", "validate"),
    "_version": ("__version__",),
    "trace._batch": ("scalable",),
    "trace._format": ("Trace",),
    "trace._record": ("Recorder", "record"),
    "trace._snapshot": ("from_snapshot", "load_snapshot"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports what needs torch, or takes time, when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
