"""Traces: recorded, written, read, and made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export
from drivetrain_memory.trace._format import EVENT, Builder, Operation, Trace
from drivetrain_memory.trace._patterns import PATTERNS, pattern
from drivetrain_memory.trace._shipped import WORKLOADS, workload
from drivetrain_memory.trace._snapshot import from_snapshot, load_snapshot

if TYPE_CHECKING:
    from drivetrain_memory.trace._batch import scalable
    from drivetrain_memory.trace._record import Recorder, record
    from drivetrain_memory.trace._workloads import record_workload

__all__ = [
    "EVENT",
    "PATTERNS",
    "WORKLOADS",
    "Builder",
    "Operation",
    "Recorder",
    "Trace",
    "from_snapshot",
    "load_snapshot",
    "pattern",
    "record",
    "record_workload",
    "scalable",
    "workload",
]

_HOMES = {
    "Recorder": "_record",
    "record": "_record",
    "record_workload": "_workloads",
    "scalable": "_batch",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
