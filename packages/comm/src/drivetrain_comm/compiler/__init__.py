"""Collectives made for a given graph of links: found, proven, timed, run, exported.

Only `ScheduleRunner` imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from drivetrain_comm.compiler._bound import Bound, lower_bound
from drivetrain_comm.compiler._compile import Candidate, Compiled, compile_schedule
from drivetrain_comm.compiler._errors import LinkGraphError, ScheduleError
from drivetrain_comm.compiler._file import graph_from_json, graph_to_json, load_graph
from drivetrain_comm.compiler._graph import LinkGraph, Wire, degraded
from drivetrain_comm.compiler._load_schedule import load_schedule
from drivetrain_comm.compiler._msccl import to_msccl
from drivetrain_comm.compiler._msccl_read import from_msccl
from drivetrain_comm.compiler._schedule import (
    COLLECTIVES,
    Schedule,
    Transfer,
    schedule_of,
)
from drivetrain_comm.compiler._simulate import simulate
from drivetrain_comm.compiler._topologies import (
    MeasuredLinks,
    from_matrix,
    full_mesh,
    hosts,
    ring,
    star,
    torus,
)
from drivetrain_comm.compiler._verify import find_fault, verify

if TYPE_CHECKING:
    from drivetrain_comm.compiler._run import ScheduleRunner

__all__ = [
    "COLLECTIVES",
    "Bound",
    "Candidate",
    "Compiled",
    "LinkGraph",
    "LinkGraphError",
    "MeasuredLinks",
    "Schedule",
    "ScheduleError",
    "ScheduleRunner",
    "Transfer",
    "Wire",
    "compile_schedule",
    "degraded",
    "find_fault",
    "from_matrix",
    "from_msccl",
    "full_mesh",
    "graph_from_json",
    "graph_to_json",
    "hosts",
    "load_graph",
    "load_schedule",
    "lower_bound",
    "ring",
    "schedule_of",
    "simulate",
    "star",
    "to_msccl",
    "torus",
    "verify",
]


def __getattr__(name: str) -> object:
    """Loads what needs torch when it is first used."""
    if name != "ScheduleRunner":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = import_module(f"{__name__}._run").ScheduleRunner
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the public names, loaded or not."""
    return sorted({*globals(), *__all__})
