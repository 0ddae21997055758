"""Computes the loss from shards of the output over the vocabulary."""

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
from drivetrain_parallel.optimizations.sequence_parallel import needs_tensor_axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core import Context, TrainingState


class LossParallel(BaseOptimization):
    """Leaves the head's output sharded over the vocabulary, up to the loss.

    No rank holds the whole output then. The ranks are those of the mesh's tensor axis.
    """

    name = "loss_parallel"
    slot = Slot.LOSS_PARALLEL
    phase = Phase.TENSOR_PARALLEL
    requires = ("mesh",)

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns none: it belongs to a mesh."""
        del context
        return []

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a mesh without a tensor axis, or with a pipeline, and own loops."""
        del config
        mesh = next((c.config for c in plan if c.name == "mesh"), {})
        if mesh.get("pipeline", 1) != 1:
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

    def apply(self, state: TrainingState, config: Config) -> None:
        """Does nothing: the mesh has read it."""
