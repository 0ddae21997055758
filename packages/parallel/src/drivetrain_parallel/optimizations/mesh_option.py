"""Optimizations that refine a mesh: the mesh itself carries them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import BaseOptimization, Code, Config, Ok, Reject

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core import Choice, Context, TrainingState


class MeshOption(BaseOptimization):
    """Half of an optimization that a mesh of the same plan reads and carries out."""

    requires = ("mesh",)

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns none: a search tries them with a mesh only."""
        del context
        return []

    def apply(self, state: TrainingState, config: Config) -> None:
        """Does nothing: the mesh has read it."""


def mesh_config(plan: Sequence[Choice]) -> Config:
    """Returns the configuration of a plan's mesh; empty without one."""
    return next((c.config for c in plan if c.name == "mesh"), {})


def needs_tensor_axis(plan: Sequence[Choice]) -> Ok | Reject:
    """Rejects a plan whose mesh has one rank along its tensor axis."""
    if mesh_config(plan).get("tensor", 1) == 1:
        return Reject(
            Code.REQUIRES, "there is no tensor axis", 'add ("mesh", {"tensor": 2})'
        )
    return Ok()
