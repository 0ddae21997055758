"""Derives the stages of a pipeline for any model, and proves them in one process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core import Code, PlanError
from drivetrain_core.accelerators import isolated_rng
from drivetrain_core.extending import map_tensors
from drivetrain_parallel.pipeline.balance import PipelineCosts, balance, stage_costs
from drivetrain_parallel.pipeline.costs import count_costs, measure_costs
from drivetrain_parallel.pipeline.needs import derive_plan, keep_all
from drivetrain_parallel.pipeline.replicas import shadow, shared_copy
from drivetrain_parallel.pipeline.sequential import (
    find_shared,
    prove,
    stages_in_process,
)
from drivetrain_parallel.pipeline.trace import BlockTrace, trace_blocks
from drivetrain_parallel.proof.copies import proof_copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_parallel.pipeline.plan import PipelinePlan


def plan_pipeline(
    model: nn.Module,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    num_stages: int,
    *,
    costs: PipelineCosts | None = None,
    verify: bool = True,
) -> PipelinePlan:
    """Returns how a model is split into stages that compute exactly what it does.

    The model's own forward runs on every stage; what a stage does not need in it is
    found by data flow. Nothing here talks to another rank: plan on one and send the
    plan to the others, since costs are measured and so differ between machines.

    Args:
        model: The whole model, which stays as it is. On the meta device it is planned
            without proof.
        batch: A micro-batch like those that it is trained on.
        loss_of: Runs the model to its scalar loss on a micro-batch.
        num_stages: How many stages, over all ranks.
        costs: What each part costs; measured when None, or counted on the meta device.
        verify: Whether the stages are run in this process, and their loss and every
            gradient compared with the whole model's.

    Raises:
        PlanError: The model cannot be split so, and why; or the split is not exact,
            and the worst parameter.

    Example:
        >>> model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
        >>> plan = plan_pipeline(
        ...     model, torch.ones(2, 4), lambda m, x: m(x).square().mean(), 2,
        ...     costs=PipelineCosts(prologue=0.0, blocks=(1.0,) * 4, epilogue=0.0))
        >>> [(stage.begin, stage.end) for stage in plan.stages], plan.is_verified
        ([(0, 2), (2, 4)], True)
    """
    _check(model, num_stages)
    on_meta = any(p.is_meta for p in model.parameters())
    if on_meta:
        batch = map_tensors(lambda t: t.to("meta"), batch)
    copied, batch = proof_copy(model, batch, loss_of)
    whole = shadow(copied)
    notes = [] if on_meta else _make_repeatable(whole, batch, loss_of)
    # What modules keep of a run must not be there when stages run.
    unrun = shared_copy(whole)
    trace = _traced(whole, batch, loss_of, num_stages)
    if costs is None:
        costs = (
            count_costs(whole, trace)
            if on_meta
            else measure_costs(whole, trace, batch, loss_of)
        )
    elif len(costs.blocks) != trace.num_blocks:
        raise PlanError(
            Code.CONFIG,
            "pipeline",
            because=f"there are costs for {len(costs.blocks)} blocks, and "
            f"{trace.container or 'the model'} has {trace.num_blocks}",
            fix="give one cost for each block, or leave them out to have them measured",
        )
    ranges = balance(costs, num_stages, cuts=trace.cuts)
    plan = _best(
        whole, unrun, trace, ranges, batch, loss_of, verify=verify and not on_meta
    )
    return replace(
        plan,
        costs=stage_costs(costs, ranges),
        is_verified=verify and not on_meta,
        notes=(*plan.notes, *notes),
    )


def _check(model: nn.Module, num_stages: int) -> None:
    if num_stages < 2:
        raise PlanError(
            Code.CONFIG,
            "pipeline",
            because=f"a pipeline has 2 stages or more, got {num_stages}",
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise PlanError(
                Code.NOT_APPLICABLE,
                "pipeline",
                because=f"{name or 'the model'} is a {type(module).__name__}, whose "
                "statistics would be those of a micro-batch instead of a batch",
                fix="use GroupNorm or LayerNorm, or freeze it with .eval()",
            )


def _make_repeatable(
    whole: nn.Module, batch: Any, loss_of: Callable[[nn.Module, Any], torch.Tensor]
) -> list[str]:
    """Turns dropout and its like off, where two runs of the model differ."""
    losses = []
    for seed in (0, 1):
        with isolated_rng(seed):
            losses.append(float(loss_of(shared_copy(whole), batch).detach()))
    if losses[0] == losses[1]:
        return []
    whole.eval()
    return ["proven in evaluation mode: in training mode its loss is drawn at random"]


def _traced(
    whole: nn.Module,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    num_stages: int,
) -> BlockTrace:
    try:
        return trace_blocks(
            whole, lambda m: loss_of(m, batch), min_blocks=max(2, num_stages)
        )
    except PlanError as error:
        # Too few blocks is another reason than none.
        if num_stages <= 2:
            raise
        try:
            trace = trace_blocks(whole, lambda m: loss_of(m, batch))
        except PlanError:
            raise error from None
        balance(count_costs(whole, trace), num_stages, cuts=trace.cuts)
        raise


def _best(
    whole: nn.Module,
    unrun: nn.Module,
    trace: BlockTrace,
    ranges: tuple[tuple[int, int], ...],
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    *,
    verify: bool,
) -> PipelinePlan:
    """Returns the first plan that is exact: the least that each stage needs, then all."""
    for begin, _ in ranges[1:]:
        if trace.outputs[begin - 1] is None:
            raise PlanError(
                Code.NOT_APPLICABLE,
                "pipeline",
                because=f"what block {begin - 1} returns cannot be rebuilt on the next "
                "stage; it must be tensors in tuples, lists or dictionaries",
                fix="let blocks return these, or use another axis than pipeline",
            )
    wrong = []
    for make in ("least", "all"):
        try:
            cut = (
                derive_plan(whole, trace, ranges, batch, loss_of)
                if make == "least"
                else keep_all(trace, ranges)
            )
            plan = _with_shared(whole, cut, loss_of)
        except PlanError:
            raise
        except Exception as error:  # noqa: BLE001 - the model's code may raise anything
            wrong.append(f"{type(error).__name__}: {error}")
            continue
        reason = prove(whole, plan, batch, loss_of, unrun=unrun) if verify else ""
        if not reason:
            notes = () if make == "least" else (_shares_all(wrong[0]),)
            return replace(plan, notes=notes)
        wrong.append(reason)
    raise PlanError(
        Code.NUMERICS,
        "pipeline",
        because=f"cut before blocks {[begin for begin, _ in ranges[1:]]}, the model "
        f"does not compute what it does whole: {wrong[-1]}",
        fix="use what a block returns in the next block only, and nothing of a block "
        "outside of it",
        evidence={f"attempt {n}": text for n, text in enumerate(wrong, 1)},
    )


def _shares_all(reason: str) -> str:
    return f"every stage runs all that comes before the blocks: {reason}"


def _with_shared(
    whole: nn.Module,
    plan: PipelinePlan,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
) -> PipelinePlan:
    shared, lost = find_shared(whole, stages_in_process(whole, plan, loss_of))
    if lost:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "pipeline",
            because=f"no stage would hold {lost[0]} ({len(lost)} such parameters)",
            fix="remove parameters that the loss does not depend on",
        )
    return replace(plan, shared=shared)
