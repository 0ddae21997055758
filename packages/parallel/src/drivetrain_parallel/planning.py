"""Derives a `ParallelPlan` for one model and one mesh, and proves it on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core import Code, DrivetrainError, PlanError
from drivetrain_core.extending import (
    batch_size,
    find_blocks,
    is_meta_model,
    map_tensors,
    repeated_blocks,
    split_batch,
)
from drivetrain_core.mesh_shape import mesh_of
from drivetrain_core.numerics.without_dropout import WithoutDropout
from drivetrain_parallel.axis_rules import require_provable
from drivetrain_parallel.context.context_plan import plan_context_parallel
from drivetrain_parallel.expert.expert_plan import plan_expert_parallel
from drivetrain_parallel.meta.flow_mode import FlowMode
from drivetrain_parallel.micro_batches import micro_batches_of
from drivetrain_parallel.parallel_plan import ParallelPlan
from drivetrain_parallel.pipeline import plan_pipeline, stages_per_rank
from drivetrain_parallel.proof.copies import with_values
from drivetrain_parallel.proof.give_values import give_values
from drivetrain_parallel.proof.in_place import ConstantParameters
from drivetrain_parallel.proof.rng_guard import changed_buffers, undisturbed
from drivetrain_parallel.tensor import plan_tensor_parallel
from drivetrain_parallel.tensor.repeated import find_block_lists, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

    from drivetrain_core import Choice
    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_parallel.pipeline import PipelinePlan

    LossOf = Callable[[nn.Module, Any], torch.Tensor]

_TENSOR_OPTIONS = {"sequence": "sequence_parallel", "loss_parallel": "loss_parallel"}


def plan_parallel(
    model: nn.Module,
    batch: Any,
    loss_of: LossOf,
    choices: Sequence[Choice],
    world_size: int,
) -> ParallelPlan:
    """Returns what each axis does to the model; all is proven in this process.

    Of a model without weights, the first blocks get values to be proven with.

    Args:
        model: The model as written; it is left as it is.
        batch: A global batch.
        loss_of: Returns the loss of a model on a batch.
        choices: The plan that is to be applied.
        world_size: Ranks in all.

    Raises:
        PlanError: An axis cannot be used with this model, and why.
    """
    shape = mesh_of(choices, world_size)
    require_provable(shape)
    _require_as_written(model)
    _require_hooks_run(model, shape)
    with undisturbed(model):
        return _planned_anywhere(model, batch, loss_of, choices, shape)


def _require_as_written(model: nn.Module) -> None:
    """Refuses what is laid out already: to run it takes ranks that do not plan."""
    laid = [name for name, p in model.named_parameters() if hasattr(p, "placements")]
    if laid:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"{type(model).__name__} is not as written: {laid[0]} "
            f"({len(laid)} such parameters) is distributed already, as accelerate "
            "leaves it",
            fix="build the model anew, or pass the function that builds it",
        )


def _require_hooks_run(model: nn.Module, shape: MeshShape) -> None:
    """Refuses hooks on parameters where others take their place, or as parts of a step.

    A pipeline alone has the parameters themselves, and sums their gradients as
    micro-batches do.
    """
    is_kept = shape.size == shape.pipeline and not is_meta_model(model)
    for name, p in model.named_parameters():
        runs = not p._post_accumulate_grad_hooks and (is_kept or not p._backward_hooks)
        if p.requires_grad and not runs:
            raise PlanError(
                Code.CONFLICT,
                "mesh",
                because=f"the parameter {name!r} has a hook on its gradient, which does "
                f"not run as written with {shape}",
                fix="do what the hook does in the forward (a mask by torch.nn.utils."
                "parametrize), or use ddp without a mesh",
            )


def _planned_anywhere(
    model: nn.Module,
    batch: Any,
    loss_of: LossOf,
    choices: Sequence[Choice],
    shape: MeshShape,
) -> ParallelPlan:
    if not is_meta_model(model):
        return _planned(model, batch, loss_of, choices, shape)
    _require_no_proof(shape)
    try:
        with FlowMode():  # type: ignore[no-untyped-call]
            return _planned(model, batch, loss_of, choices, shape)
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, DrivetrainError):
            raise
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"without the values of its weights, {type(model).__name__} cannot "
            f"be run to plan it: {error}",
            fix='use weights="build" on a machine that holds the model',
        ) from error


def _planned(
    model: nn.Module,
    batch: Any,
    loss_of: LossOf,
    choices: Sequence[Choice],
    shape: MeshShape,
) -> ParallelPlan:
    names = {choice.name: choice.config for choice in choices}

    def plain_loss(of: nn.Module, samples: Any) -> torch.Tensor:
        # Ranks draw other numbers than one process: without them both are compared.
        with WithoutDropout():  # A program may write to its batch.
            return loss_of(of, map_tensors(lambda tensor: tensor.clone(), samples))

    parts: dict[str, Any] = {}
    num = micro_batches_of(choices, shape.pipeline, batch_size(batch), shape.data_size)
    rows = max(1, batch_size(batch) // (shape.data_size * num))
    micro = split_batch(batch, _cut(batch_size(batch), rows))[0]
    # What modules keep of a run must not be in what is proven.
    copied = {"tensor", "context", "expert", "pipeline"} & shape.used().keys()
    probed = with_values(model) if copied else model
    _require_constant_state(probed, micro, plain_loss)
    if shape.tensor > 1:
        wanted = {
            option: True for option, name in _TENSOR_OPTIONS.items() if name in names
        }
        parts["tensor"] = plan_tensor_parallel(
            model, micro, plain_loss, shape.tensor, **wanted
        )
    if shape.context > 1:
        parts["context"] = plan_context_parallel(
            model, micro, plain_loss, shape.context
        )
    if shape.expert > 1:
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
        parts["expert"] = plan_expert_parallel(model, each, plain_loss, shape.expert)
    if shape.pipeline > 1:
        schedule: Mapping[str, Any] = names.get("schedule", {})
        kind, per_rank = schedule.get("kind", "1f1b"), schedule.get("stages_per_rank")
        stages = shape.pipeline * stages_per_rank(kind, per_rank)
        parts["pipeline"] = plan_pipeline(model, micro, plain_loss, stages)
        if shape.context > 1:
            _require_same_blocks(model, parts["pipeline"])
        if is_meta_model(model):
            _prove_few_stages(with_values(model), micro, plain_loss, parts["pipeline"])
    return ParallelPlan(shape=shape, **parts)


def _require_constant_state(
    model: nn.Module, batch: Any, loss_of: Callable[[nn.Module, Any], torch.Tensor]
) -> None:
    """Refuses models that write to parameters, or keep statistics of what they see."""

    def run() -> None:
        with ConstantParameters(model):
            loss_of(model, batch)

    changed = changed_buffers(model, run)
    if changed:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"the forward changes the buffer {changed[0]!r} "
            f"({len(changed)} such buffers), and ranks that see different parts of a "
            "batch would keep different values in it",
            fix="update it outside of the forward, or freeze the module with .eval()",
        )


def _require_no_proof(shape: MeshShape) -> None:
    """Refuses axes that are applied only when they were proven on values."""
    for axis in ("context", "expert"):
        if shape.used().get(axis):
            raise PlanError(
                Code.NOT_APPLICABLE,
                "mesh",
                because=f"{axis}={shape.used()[axis]} is proven on the values of the "
                "weights, and the model is built without weights",
                fix='use weights="build", or a mesh of pipeline, shard, replicate and '
                "tensor",
            )


def _require_same_blocks(model: nn.Module, plan: PipelinePlan) -> None:
    """Raises unless stages are cut out of the blocks that share the sequence."""
    blocks = repeated_blocks(model, find_blocks(model))
    if plan.blocks_of(model) != blocks:
        raise PlanError(
            Code.CONFLICT,
            "mesh",
            because=f"the stages are made of {plan.num_blocks} modules of "
            f"{plan.container or 'the model itself'}, and {len(blocks)} blocks share "
            "the sequence",
            fix="use fewer stages, or context=1",
        )


def _prove_few_stages(
    model: nn.Module,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    whole: PipelinePlan,
) -> None:
    """Raises unless a model of few blocks, cut as the whole one is, is exact.

    It has a first stage, a last one, and one between them where the whole has.
    """
    few = min(whole.num_stages, 3)
    lists = find_block_lists(model)
    short = give_values(shortened(model, lists, at_least=few))
    try:
        plan = plan_pipeline(short, batch, loss_of, few)
        same = _cuts(plan) == _cuts(whole)
        because = "" if same else "they are exact only if each stage runs more"
    # Code that counts on the number of blocks raises whatever it likes.
    except Exception as error:  # noqa: BLE001
        because = f"{type(error).__name__}: {error}"
    if because:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "pipeline",
            because="the model has no weights, and its cut could not be proven with "
            f"{few} stages of a few blocks: {because}",
            fix='use weights="build" on a machine that holds the model',
        )


def _cuts(plan: PipelinePlan) -> list[tuple[tuple[str, ...], ...]]:
    """Returns what the first, the second and the last stage leave out."""
    return [
        (s.received, s.zeroed, s.dropped, s.zeroed_parameters)
        for s in (*plan.stages[:2], plan.stages[-1])
    ]


def _cut(whole: int, first: int) -> list[int]:
    return [first] if first >= whole else [first, whole - first]
