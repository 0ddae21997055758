"""Pipeline parallel: a model split into stages by data flow, proven in one process."""

from __future__ import annotations

from drivetrain_parallel.pipeline.balance import PipelineCosts, balance
from drivetrain_parallel.pipeline.plan import PipelinePlan
from drivetrain_parallel.pipeline.planner import plan_pipeline
from drivetrain_parallel.pipeline.schedules import (
    SCHEDULES,
    stages_of_rank,
    stages_per_rank,
)
from drivetrain_parallel.pipeline.stage import StageModule, build_stages
from drivetrain_parallel.pipeline.step import PipelineStep
from drivetrain_parallel.pipeline.trace import trace_blocks

__all__ = [
    "SCHEDULES",
    "PipelineCosts",
    "PipelinePlan",
    "PipelineStep",
    "StageModule",
    "balance",
    "build_stages",
    "plan_pipeline",
    "stages_of_rank",
    "stages_per_rank",
    "trace_blocks",
]
