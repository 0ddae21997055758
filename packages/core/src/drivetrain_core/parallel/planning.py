"""Lays a program over the mesh that a plan asks for, and proves each axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core._batch import batch_size, split_batch
from drivetrain_core._errors import Code, PlanError
from drivetrain_core.parallel.context.context_plan import plan_context_parallel
from drivetrain_core.parallel.expert.expert_plan import plan_expert_parallel
from drivetrain_core.parallel.micro_batches import micro_batches_of
from drivetrain_core.parallel.parallel_plan import ParallelPlan
from drivetrain_core.parallel.resolve import mesh_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from drivetrain_core._optimization import Choice
    from drivetrain_core._program import Program

__all__ = ["plan_parallel"]

_TENSOR_OPTIONS = {"sequence": "sequence_parallel", "loss_parallel": "loss_parallel"}


def plan_parallel(
    program: Program,
    model: nn.Module,
    batch: Any,
    choices: Sequence[Choice],
    world_size: int,
) -> ParallelPlan:
    """Returns what each axis does to the model; all is proven in this process.

    Args:
        program: The user's program.
        model: Its model as written; it is left as it is.
        batch: A global batch.
        choices: The plan that is to be applied.
        world_size: Ranks in all.

    Raises:
        PlanError: An axis cannot be used with this model, and why.
    """
    shape = mesh_of(choices, world_size)
    names = {choice.name: choice.config for choice in choices}
    loss_of = program.loss_of
    parts: dict[str, Any] = {}
    num = micro_batches_of(choices, shape.pipeline, batch_size(batch), shape.data_size)
    rows = max(1, batch_size(batch) // (shape.data_size * num))
    micro = split_batch(batch, _cut(batch_size(batch), rows))[0]
    if shape.tensor > 1:
        from drivetrain_core.parallel.tensor import plan_tensor_parallel

        wanted = {
            option: True
            for option, name in _TENSOR_OPTIONS.items()
            if name in names
        }
        parts["tensor"] = plan_tensor_parallel(
            model, micro, loss_of, shape.tensor, **wanted
        )
    if shape.context > 1:
        parts["context"] = plan_context_parallel(model, micro, loss_of, shape.context)
    if shape.expert > 1:
        if shape.tensor > 1 or shape.context > 1:
            raise PlanError(
                Code.CONFLICT,
                "mesh",
                because=f"expert={shape.expert} is not proven together with "
                "tensor or context",
                fix="use expert with pipeline, shard and replicate",
            )
        whole = batch_size(batch)
        if whole < shape.expert:
            raise PlanError(
                Code.NOT_DIVISIBLE,
                "mesh",
                because=f"a batch of {whole} has no sample for each of "
                f"expert={shape.expert} ranks",
                fix="use a larger batch",
            )
        each = split_batch(batch, _cut(whole, min(whole, rows * shape.expert)))[0]
        even = batch_size(each) // shape.expert * shape.expert
        each = split_batch(each, _cut(batch_size(each), even))[0]
        parts["expert"] = plan_expert_parallel(model, each, loss_of, shape.expert)
    if shape.pipeline > 1:
        from drivetrain_core.parallel.pipeline import plan_pipeline, stages_per_rank

        kind = names.get("schedule", {}).get("kind", "1f1b")
        per_rank = names.get("schedule", {}).get("stages_per_rank")
        stages = shape.pipeline * stages_per_rank(kind, per_rank)
        parts["pipeline"] = plan_pipeline(model, micro, loss_of, stages)
    return ParallelPlan(shape=shape, **parts)


def _cut(whole: int, first: int) -> list[int]:
    return [first] if first >= whole else [first, whole - first]
