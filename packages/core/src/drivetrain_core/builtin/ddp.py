"""Replicated data parallel: `DistributedDataParallel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel

from drivetrain_core._choice import Numerics, Ok, Option, Phase, Reject, Slot
from drivetrain_core._errors import Code
from drivetrain_core._optimization import BaseOptimization
from drivetrain_core.mesh_shape import asks_for_mesh

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._choice import Choice, Config
    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState


class Ddp(BaseOptimization):
    """Keeps a copy of the model on each rank and averages the gradients.

    Gradients are reduced in buckets while the backward still runs. Gradients are
    views into the buckets, which saves one copy of them. A model that does not use
    every parameter in every step needs `find_unused_parameters`.
    """

    name = "ddp"
    slot = Slot.DATA_PARALLEL
    phase = Phase.SHARD
    options = {
        "bucket_cap_mb": Option(25, minimum=1),
        "find_unused_parameters": Option(default=False),
    }
    shorthand = "bucket_cap_mb"
    # The sum over samples is taken by rank.
    numerical_change = Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns the default bucket size; none for one rank."""
        return [self.normalize(25)] if context.world.size > 1 else []

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a single rank, and batches with less than a sample a rank."""
        del config
        return needs_world(context, parts=1 if asks_for_mesh(plan) else None)

    def apply(self, state: TrainingState, config: Config) -> None:
        """Wraps the model; over a mesh, this rank's part of it."""
        if state.layout is not None:
            # Inside pipelines and around shards DDP itself hangs or fails.
            state.set_gradient_sync = state.layout.average_copies()
            return
        for buffer in filter(torch.Tensor.is_contiguous, state.module.buffers()):
            # Torch sends no buffer alone that is transposed at a dimension of size 1.
            buffer.data = buffer.data.flatten().view(buffer.shape)
        index = None if state.device.type == "cpu" else [state.device.index or 0]
        replica = DistributedDataParallel(
            state.model,
            device_ids=index,
            bucket_cap_mb=config["bucket_cap_mb"],
            find_unused_parameters=config["find_unused_parameters"],
            gradient_as_bucket_view=True,
        )

        def sync(enabled: bool) -> None:
            # What DDP.no_sync sets; read by the next forward and backward.
            replica.require_backward_grad_sync = enabled

        _average_when_unfrozen(replica)
        state.model, state.set_gradient_sync = replica, sync


def _average_when_unfrozen(replica: DistributedDataParallel) -> None:
    """Averages gradients of parameters that are frozen now, which DDP never looks at."""

    def average(parameter: torch.Tensor) -> None:
        if replica.require_backward_grad_sync and parameter.grad is not None:
            parameter.grad /= replica.process_group.size()
            torch.distributed.all_reduce(parameter.grad, group=replica.process_group)

    frozen = [p for p in replica.parameters() if not p.requires_grad]
    for parameter in filter(torch.Tensor.is_floating_point, frozen):
        parameter.requires_grad_(True)
        parameter.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]
        parameter.requires_grad_(False)


def needs_world(context: Context, parts: int | None = None) -> Ok | Reject:
    """Rejects a single rank, and global batches with fewer samples than parts.

    Args:
        context: The facts.
        parts: Parts that a global batch is split into; one a rank if None.
    """
    parts, batch = parts or context.world.size, context.batch.size
    if context.world.size == 1:
        return Reject(
            Code.NEEDS_WORLD,
            "there is one rank, and nothing to average with",
            "launch with torchrun, and call drivetrain_core.init_process_group()",
        )
    if batch < parts:
        return Reject(
            Code.NOT_DIVISIBLE,
            f"a global batch of {batch} has no sample for each of {parts} ranks",
            f"use a global batch of at least {parts}",
        )
    return Ok()
