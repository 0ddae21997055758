"""Computes the loss from shards of the output over the vocabulary."""

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


class LossParallel(MeshOption):
    """Leaves the head's output sharded over the vocabulary, up to the loss.

    No rank holds the whole output then. The ranks are those of the mesh's tensor axis.
    """

    name = "loss_parallel"
    slot = Slot.LOSS_PARALLEL
    phase = Phase.TENSOR_PARALLEL

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a mesh without a tensor axis, or with a pipeline, and own loops."""
        del config
        if mesh_config(plan).get("pipeline", 1) != 1:
            return Reject(
                Code.CONFLICT,
                "the last stage of a pipeline has the whole output",
                "use pipeline=1, or leave loss_parallel out",
            )
        if not context.loop.owns_step:
            return Reject(
                Code.STEP_NOT_OWNED,
                "the loss and its backward run in a context that train_step opens",
                "use train_step(batch), and do not pass own_loop=True",
            )
        return needs_tensor_axis(plan)
