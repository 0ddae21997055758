"""Faults to order, for tests: a process killed, stopped or slowed, a network cut in two.

Each fault is ended by whoever began it: they are context managers, which heal when their
block is left, also by an error, or they return an `Ongoing` that can be healed. They need
Linux. What needs more than an ordinary user has says so when it is missing;
`missing_because` says it before, for a test that is to be skipped.
"""

from __future__ import annotations

from drivetrain_health.faults._chaos import Act, Chaos, Happening
from drivetrain_health.faults._chaos_plan import ChaosSpec, Strike, plan_chaos
from drivetrain_health.faults._clock import skew_clock
from drivetrain_health.faults._disk import SmallDisk, limit_file_size, small_disk
from drivetrain_health.faults._errors import (
    FaultError,
    MissingPrivilegeError,
    TargetGoneError,
)
from drivetrain_health.faults._kill import kill
from drivetrain_health.faults._network import Network
from drivetrain_health.faults._ongoing import Ongoing
from drivetrain_health.faults._privileges import missing_because
from drivetrain_health.faults._slow import slow
from drivetrain_health.faults._stop import stop
from drivetrain_health.faults._target import HasPid, Target

__all__ = [
    "Act",
    "Chaos",
    "ChaosSpec",
    "FaultError",
    "Happening",
    "HasPid",
    "MissingPrivilegeError",
    "Network",
    "Ongoing",
    "SmallDisk",
    "Strike",
    "Target",
    "TargetGoneError",
    "kill",
    "limit_file_size",
    "missing_because",
    "plan_chaos",
    "skew_clock",
    "slow",
    "small_disk",
    "stop",
]
