"""Splits what is between the matrices of tensor parallel along the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import Choice, Code, Config, Ok, Phase, Reject, Slot
from drivetrain_parallel.optimizations.mesh_option import (
    MeshOption,
    mesh_config,
    needs_tensor_axis,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core import Context


class SequenceParallel(MeshOption):
    """Keeps norms and the residual stream as shards of the sequence.

    It needs the memory of one rank's part for them, where tensor parallel alone needs
    that of the whole. The ranks are those of the mesh's tensor axis.
    """

    name = "sequence_parallel"
    slot = Slot.SEQUENCE_PARALLEL
    phase = Phase.TENSOR_PARALLEL

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a mesh without a tensor axis, and one that splits sequences itself."""
        del context, config
        if mesh_config(plan).get("context", 1) != 1:
            return Reject(
                Code.CONFLICT,
                "the context axis splits the sequence of the same blocks",
                "leave sequence_parallel out, or use context=1",
            )
        return needs_tensor_axis(plan)
