"""NCCL's choice of algorithm and protocol, by a table that was made from measurements.

A plug-in, which NCCL itself loads, follows the table; `enable_tuner` makes all ranks use
the same. `table_from` makes a table out of a benchmark. Only `enable_tuner` needs torch,
and that only where ranks must meet.
"""

from __future__ import annotations

from drivetrain_comm.nccl._enable import disable_tuner, enable_tuner, environment_of
from drivetrain_comm.nccl._errors import NcclTableError
from drivetrain_comm.nccl._from_benchmark import (
    LEAST_GAIN,
    Winner,
    find_winners,
    table_from,
)
from drivetrain_comm.nccl._library import (
    IGNORED,
    VERSIONS,
    HostedTuner,
    Message,
    tuner_library,
)
from drivetrain_comm.nccl._measurement import (
    Measurement,
    load_measurements,
    parse_measurements,
)
from drivetrain_comm.nccl._rule import ALGORITHMS, COLLECTIVES, PROTOCOLS, Rule
from drivetrain_comm.nccl._table import Table
from drivetrain_comm.nccl._text import format_table, load_table, parse_table

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "IGNORED",
    "LEAST_GAIN",
    "PROTOCOLS",
    "VERSIONS",
    "HostedTuner",
    "Measurement",
    "Message",
    "NcclTableError",
    "Rule",
    "Table",
    "Winner",
    "disable_tuner",
    "enable_tuner",
    "environment_of",
    "find_winners",
    "format_table",
    "load_measurements",
    "load_table",
    "parse_measurements",
    "parse_table",
    "table_from",
    "tuner_library",
]
