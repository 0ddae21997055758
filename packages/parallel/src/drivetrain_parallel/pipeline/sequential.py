"""Runs all stages one after another in one process, which proves or refutes a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.accelerators import isolated_rng
from drivetrain_parallel.pipeline.plan import PipelinePlan, SharedParameter
from drivetrain_parallel.pipeline.replicas import shared_copy
from drivetrain_parallel.pipeline.stage import StageModule, build_stages
from drivetrain_parallel.proof.outputs import StepOutput, compare, step_output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn


@dataclass(frozen=True, slots=True, eq=False)
class StageRun:
    """What went into a stage and came out, on one micro-batch.

    Args:
        received: The tensors it was given, as leaves of its graph.
        outputs: The tensors for the next stage; the loss on the last one.
    """

    received: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


def stages_in_process(
    whole: nn.Module,
    plan: PipelinePlan,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    *,
    attributes: nn.Module | None = None,
) -> list[StageModule]:
    """Returns every stage, all around the parameters of one model that stays whole.

    Args:
        whole: The model.
        plan: How it is split.
        loss_of: Runs the model to its loss.
        attributes: See `build_stages`.
    """
    indices = range(plan.num_stages)
    copied = shared_copy(whole)
    return build_stages(copied, plan, indices, loss_of, attributes=attributes)


def run_in_turn(stages: Sequence[StageModule], batch: Any) -> list[StageRun]:
    """Runs the stages forwards, each on what the one before has sent.

    Args:
        stages: All of them, in order.
        batch: A micro-batch.
    """
    runs: list[StageRun] = []
    index = torch.zeros(1, dtype=torch.long)
    outputs: tuple[torch.Tensor, ...] = ()
    for stage in stages:
        stage.set_micro_batches([batch], [1.0])
        received = tuple(
            t.detach().requires_grad_(t.is_floating_point()) for t in outputs
        )
        found = stage(*received, index=index)
        outputs = found if isinstance(found, tuple) else (found,)
        runs.append(StageRun(received, outputs))
        stage.set_micro_batches([], [])
    return runs


def prove(
    whole: nn.Module,
    plan: PipelinePlan,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    *,
    unrun: nn.Module | None = None,
) -> str:
    """Returns what is wrong with a plan, empty if its stages compute what they should.

    Args:
        whole: The model, without gradients, on storage that is not stepped.
        plan: The plan.
        batch: A micro-batch.
        loss_of: Runs the model to its loss.
        unrun: A structure that has not run, around the same parameters, of which the
            stages are made; the model as it is when None.
    """
    with isolated_rng(0):
        expected = _without_zeros(step_output(whole, batch, loss_of))
    with isolated_rng(0):
        try:
            stages = stages_in_process(unrun or whole, plan, loss_of)
            unsummed = _unsummed(whole, stages, plan)
            if unsummed:
                return unsummed
            found = _staged_evidence(whole, stages, batch)
        except Exception as error:  # noqa: BLE001 - the model's code may raise anything
            return f"a stage fails: {type(error).__name__}: {error}"
        finally:
            whole.zero_grad(set_to_none=True)
    return compare(expected, _without_zeros(found))


def _unsummed(
    whole: nn.Module, stages: Sequence[StageModule], plan: PipelinePlan
) -> str:
    """Returns what several stages hold, and the plan sums no gradients of."""
    # In this process they hold one parameter, whose gradient sums itself.
    known = {one.name: dict(one.names) for one in plan.shared}
    for one in find_shared(whole, stages)[0]:
        if known.get(one.name) != dict(one.names):
            where = " and ".join(map(str, one.names))
            return f"stages {where} hold {one.name!r}, and its gradients are not summed"
    return ""


def _staged_evidence(
    whole: nn.Module, stages: Sequence[StageModule], batch: Any
) -> StepOutput:
    runs = run_in_turn(stages, batch)
    loss = runs[-1].outputs[0]
    grads: list[torch.Tensor | None] = [torch.ones_like(loss)]
    for run in reversed(runs):
        pairs = [
            (tensor, grad)
            for tensor, grad in zip(run.outputs, grads, strict=True)
            if tensor.requires_grad and grad is not None
        ]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        grads = [tensor.grad for tensor in run.received]
    gradients = {
        name: parameter.grad
        for name, parameter in whole.named_parameters()
        if parameter.grad is not None
    }
    return StepOutput(float(loss.detach()), gradients)


def _without_zeros(evidence: StepOutput) -> StepOutput:
    # A parameter that nothing depends on has no gradient in one process, and may have
    # one of zeros behind a boundary.
    kept = {n: g for n, g in evidence.gradients.items() if bool(g.any())}
    return StepOutput(evidence.loss, kept)


def find_shared(
    whole: nn.Module, stages: Sequence[StageModule]
) -> tuple[tuple[SharedParameter, ...], tuple[str, ...]]:
    """Returns the parameters that several stages hold, and those that none does.

    Args:
        whole: The model whose parameters the stages hold.
        stages: All stages.
    """
    held: dict[int, dict[int, str]] = {}
    for index, stage in enumerate(stages):
        for name, parameter in stage.model.named_parameters():
            held.setdefault(id(parameter), {})[index] = name
    named = dict(whole.named_parameters())
    shared = tuple(
        SharedParameter(name=name, names=held[id(parameter)])
        for name, parameter in named.items()
        if len(held.get(id(parameter), {})) > 1
    )
    lost = tuple(name for name, p in named.items() if id(p) not in held)
    return shared, lost
