"""Splits what is between the matrices of tensor parallel along the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import (
    BaseOptimization,
    Choice,
    Code,
    Config,
    Ok,
    Phase,
    Reject,
    Slot,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core import Context, TrainingState


class SequenceParallel(BaseOptimization):
    """Keeps norms and the residual stream as shards of the sequence.

    It needs the memory of one rank's part for them, where tensor parallel alone needs
    that of the whole. The ranks are those of the mesh's tensor axis.
    """

    name = "sequence_parallel"
    slot = Slot.SEQUENCE_PARALLEL
    phase = Phase.TENSOR_PARALLEL
    requires = ("mesh",)

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns none: it belongs to a mesh."""
        del context
        return []

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a mesh without a tensor axis, and one that splits sequences itself."""
        del context, config
        mesh = next((c.config for c in plan if c.name == "mesh"), {})
        if mesh.get("context", 1) != 1:
            return Reject(
                Code.CONFLICT,
                "the context axis splits the sequence of the same blocks",
                "leave sequence_parallel out, or use context=1",
            )
        return needs_tensor_axis(plan)

    def apply(self, state: TrainingState, config: Config) -> None:
        """Does nothing: the mesh has read it."""


def needs_tensor_axis(plan: Sequence[Choice]) -> Ok | Reject:
    """Rejects a plan whose mesh has one rank along its tensor axis."""
    mesh = next((c.config for c in plan if c.name == "mesh"), {})
    if mesh.get("tensor", 1) == 1:
        return Reject(
            Code.REQUIRES, "there is no tensor axis", 'add ("mesh", {"tensor": 2})'
        )
    return Ok()
