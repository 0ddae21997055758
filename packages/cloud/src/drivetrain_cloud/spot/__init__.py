"""Training on nodes that may be taken away: decisions, and what carries them out.

`decide` is a pure function of the time, of what nodes there are and of what the user
wants; the supervisor, the operator of Kubernetes and the simulation of strategies all
ask it. Each of its five abilities is a file of its own: `max_wait_time`,
`checkpoint_saving`, `fail_tolerance`, `job_recovery` and `cost_observability`.
"""

from __future__ import annotations

from drivetrain_cloud.spot.actions import (
    Cancel,
    GiveUp,
    Leave,
    Pause,
    Release,
    Request,
    Resume,
    Save,
    Suspend,
    Train,
)
from drivetrain_cloud.spot.capacity import (
    Capacity,
    JobPhase,
    Market,
    Node,
    NodePhase,
    Notice,
)
from drivetrain_cloud.spot.config import AfterMaxWait, Recovery, SpotConfig
from drivetrain_cloud.spot.decide import Decision, decide
from drivetrain_cloud.spot.job_control import JobControl, JobView
from drivetrain_cloud.spot.pool import CapacityPool, PoolNode
from drivetrain_cloud.spot.supervisor import Supervisor

__all__ = [
    "AfterMaxWait",
    "Cancel",
    "Capacity",
    "CapacityPool",
    "Decision",
    "GiveUp",
    "JobControl",
    "JobPhase",
    "JobView",
    "Leave",
    "Market",
    "Node",
    "NodePhase",
    "Notice",
    "Pause",
    "PoolNode",
    "Recovery",
    "Release",
    "Request",
    "Resume",
    "Save",
    "SpotConfig",
    "Supervisor",
    "Suspend",
    "Train",
    "decide",
]
