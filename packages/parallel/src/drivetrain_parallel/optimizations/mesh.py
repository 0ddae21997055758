"""Lays the model over a mesh of ranks: pipeline, tensor, context and expert axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import (
    BaseOptimization,
    Choice,
    Code,
    Config,
    Numerics,
    Ok,
    Option,
    Phase,
    PlanError,
    Reject,
    Slot,
)
from drivetrain_core.builtin.ddp import needs_world
from drivetrain_core.extending import NO_BLOCKS
from drivetrain_core.mesh_shape import mesh_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core import Context, TrainingState
    from drivetrain_core.mesh_shape import MeshShape

_OPEN = Option(None, kind=int, minimum=1, optional=True)
_ONE = Option(1, minimum=1)


class Mesh(BaseOptimization):
    """Says how many ranks there are along each axis, and does what the axes ask for.

    Ranks that `pipeline`, `expert`, `context` and `tensor` leave read different samples:
    they shard the model under `fsdp`, and copy it under `ddp`. `replicate` and `shard`
    say how many do which; a plan that leaves one of them open fits any number of ranks.
    """

    name = "mesh"
    slot = Slot.MESH
    phase = Phase.TENSOR_PARALLEL
    options = {
        "pipeline": _ONE,
        "replicate": _OPEN,
        "shard": _OPEN,
        "expert": _ONE,
        "context": _ONE,
        "tensor": _ONE,
    }
    # Sums are taken by rank.
    numerical_change = Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns the meshes with an axis of the model that divide this world."""
        world = context.world.size
        if world == 1:
            return []
        found = []
        for tensor in _divisors(world):
            for pipeline in _divisors(world // tensor):
                if tensor * pipeline == 1 or tensor > context.world.local_size:
                    continue
                config = self.normalize({"tensor": tensor, "pipeline": pipeline})
                if isinstance(self.check(context, config, ()), Ok):
                    found.append(config)
        return found

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects one rank, axes that do not fit, and batches that cannot be split."""
        answer = needs_world(context, parts=1)
        if isinstance(answer, Reject):
            return answer
        try:
            shape = mesh_of([*plan, Choice(self.name, config)], context.world.size)
        except PlanError as error:
            return Reject(error.code, error.because, error.fix)
        return _fits(context, shape, plan)

    def apply(self, state: TrainingState, config: Config) -> None:
        """Makes the mesh, and leaves this rank its part of the model."""
        # Imported here: it takes a second, and is not needed to check a plan.
        from drivetrain_parallel.apply_mesh import apply_mesh

        del config
        apply_mesh(state)


def _fits(context: Context, shape: MeshShape, plan: Sequence[Choice]) -> Ok | Reject:
    batch = context.batch.size
    if context.loop.loader == "sharded" and shape.data_size < shape.size:
        return Reject(
            Code.NOT_APPLICABLE,
            f"the loader splits the data over {shape.size} ranks, and ranks of one "
            "model must read the same samples",
            "hand over a loader without a DistributedSampler",
        )
    if batch < shape.data_size:
        return Reject(
            Code.NOT_DIVISIBLE,
            f"a global batch of {batch} has no sample for each of {shape.data_size} "
            "parts that it is split into",
            f"use a global batch of at least {shape.data_size}, or larger axes",
        )
    if shape.pipeline > 1:
        return _fits_pipeline(context, shape, plan)
    if shape.expert > 1 and batch % shape.data_size:
        return Reject(
            Code.NOT_DIVISIBLE,
            f"the ranks of expert={shape.expert} need as many samples each, and a "
            f"batch of {batch} has no {shape.data_size} equal parts",
            f"use a multiple of {shape.data_size}",
        )
    return Ok()


def _fits_pipeline(
    context: Context, shape: MeshShape, plan: Sequence[Choice]
) -> Ok | Reject:
    blocks, batch = context.model.blocks, context.batch.size
    if not context.loop.owns_step:
        return Reject(
            Code.STEP_NOT_OWNED,
            "a pipeline drives the model itself, and the training loop calls it",
            "use train_step(batch), and do not pass own_loop=True",
        )
    if blocks is None:
        return Reject(
            Code.NOT_APPLICABLE,
            f"pipeline={shape.pipeline} splits blocks, and {context.model.kind} has "
            f"{NO_BLOCKS}",
            "hold its layers so, or leave pipeline out: fsdp and ddp need no blocks",
        )
    if blocks.count < shape.pipeline:
        return Reject(
            Code.NOT_DIVISIBLE,
            f"pipeline={shape.pipeline} stages need a block each, and "
            f"{context.model.kind} has {blocks.count} blocks",
            f"use pipeline={blocks.count} at most",
        )
    if context.model.has_batch_norm:
        return Reject(
            Code.NOT_APPLICABLE,
            "BatchNorm statistics depend on the size of the micro-batch",
            "use GroupNorm or LayerNorm, or pipeline=1",
        )
    wanted = next((c.config["num"] for c in plan if c.name == "micro_batch"), None)
    parts = shape.data_size * (wanted if isinstance(wanted, int) else 1)
    if batch % parts:
        return Reject(
            Code.UNEVEN_MICROBATCH,
            f"the micro-batches of a pipeline are equal, and a batch of {batch} has no "
            f"{parts} equal parts",
            f"use a global batch that is a multiple of {parts}",
        )
    if batch // shape.data_size < shape.pipeline:
        return Reject(
            Code.UNEVEN_MICROBATCH,
            f"a rank's batch of {batch // shape.data_size} cannot fill "
            f"{shape.pipeline} stages with a sample each",
            f"use a global batch of at least {shape.data_size * shape.pipeline}",
        )
    return Ok()


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
