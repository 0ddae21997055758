"""Computes the loss from shards of the output over the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core._optimization import (
    BaseOptimization,
    Choice,
    Config,
    Ok,
    Phase,
    Reject,
    Slot,
)
from drivetrain_core.builtin.sequence_parallel import needs_tensor_axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState

__all__ = ["LossParallel"]


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
        """Rejects a plan whose mesh has no tensor axis."""
        del context, config
        return needs_tensor_axis(plan)

    def apply(self, state: TrainingState, config: Config) -> None:
        """Does nothing: the mesh has read it."""
