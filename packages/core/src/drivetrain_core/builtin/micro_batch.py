"""Micro-batches: several smaller passes a step, the global batch kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core._choice import Numerics, Ok, Option, Phase, Reject, Slot
from drivetrain_core._errors import Code, PlanError
from drivetrain_core._optimization import BaseOptimization, whole_number
from drivetrain_core.mesh_shape import asks_for_mesh, mesh_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._choice import Choice, Config
    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState

_CANDIDATES = (2, 4, 8)


class MicroBatch(BaseOptimization):
    """Splits each rank's batch into equal parts and accumulates their gradients.

    Each part's loss is weighted by its share of the global batch, so that the
    gradient is that of the whole batch for a loss that is a mean over samples.
    """

    name = "micro_batch"
    slot = Slot.MICRO_BATCH
    phase = Phase.SCHEDULE
    options = {"num": Option(2, minimum=1)}
    shorthand = "num"
    monotone = True

    def numerics(self, config: Config) -> Numerics:
        """Returns `REORDER`: the sum over samples is taken in parts."""
        return Numerics.EXACT if config["num"] == 1 else Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns 2, 4 and 8 parts, as far as they divide a rank's batch."""
        whole = context.local_batch
        even = context.batch.size % context.world.size == 0
        fits = [num for num in _CANDIDATES if whole % num == 0 and whole > num and even]
        return [{"num": num} for num in fits]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a loop that core does not drive, BatchNorm, and empty parts."""
        num = whole_number(config, "num")
        if num == 1:
            return Ok()
        if not context.loop.owns_step:
            return Reject(
                Code.STEP_NOT_OWNED,
                "the training loop calls the model itself",
                "use train_step(batch), and do not pass own_loop=True",
            )
        if context.model.has_batch_norm:
            return Reject(
                Code.NOT_APPLICABLE,
                "BatchNorm statistics depend on the size of the micro-batch",
                "use GroupNorm or LayerNorm, or keep one micro-batch",
            )
        local = _local_batch(context, plan)
        if num > local:
            return Reject(
                Code.UNEVEN_MICROBATCH,
                f"a rank's batch of {local} has no {num} parts",
                f"use at most {local} micro-batches",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Sets the number of micro-batches."""
        state.num_micro_batches = whole_number(config, "num")


def _local_batch(context: Context, plan: Sequence[Choice]) -> int:
    if not asks_for_mesh(plan):
        return context.local_batch
    try:
        shape = mesh_of(plan, context.world.size)
    except PlanError:
        # The mesh's own check says what is wrong with it.
        return context.local_batch
    return context.batch.size // shape.data_size
