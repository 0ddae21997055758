"""Groups of ranks for data, tensor and pipeline parallelism, made in one go."""

from drivetrain_comm.groups._create import create_groups, lazy_gloo
from drivetrain_comm.groups._plan import GroupPlan, PlannedGroup, plan_groups

__all__ = ["GroupPlan", "PlannedGroup", "create_groups", "lazy_gloo", "plan_groups"]
