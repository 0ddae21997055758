"""Predicts the time and memory of a training step on a mesh, without running it.

    profile = profile_transformer(layers=32, hidden=4096, heads=32, vocab=128256, seq=8192)
    hardware = Hardware.of(cluster.nodes[0])
    ranking = rank_meshes(profile, hardware, num_devices=64, global_batch=512)

All of it is arithmetic on plain data. Nothing here imports torch but `profile_module`,
when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_parallel.cost.efficiency import Efficiency, efficiency_of
from drivetrain_parallel.cost.hardware import Hardware, Path, Probes, calibrate
from drivetrain_parallel.cost.model_profile import Matmul, ModelProfile, Part
from drivetrain_parallel.cost.predict import Prediction, predict
from drivetrain_parallel.cost.rank_meshes import (
    Candidate,
    Ranking,
    Refused,
    rank_meshes,
)
from drivetrain_parallel.cost.schedules import SCHEDULES
from drivetrain_parallel.cost.step_options import StepOptions
from drivetrain_parallel.cost.transformer_profile import profile_transformer

if TYPE_CHECKING:
    from drivetrain_parallel.cost.module_profile import profile_module

__all__ = [
    "SCHEDULES",
    "Candidate",
    "Efficiency",
    "Hardware",
    "Matmul",
    "ModelProfile",
    "Part",
    "Path",
    "Prediction",
    "Probes",
    "Ranking",
    "Refused",
    "StepOptions",
    "calibrate",
    "efficiency_of",
    "predict",
    "profile_module",
    "profile_transformer",
    "rank_meshes",
]


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    if name == "profile_module":
        from drivetrain_parallel.cost.module_profile import profile_module

        return profile_module
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
