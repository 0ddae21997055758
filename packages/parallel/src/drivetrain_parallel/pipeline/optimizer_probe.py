"""Whether an optimizer steps each stage by its own gradients alone, found by trying it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import nn

from drivetrain_core import Code, PlanError
from drivetrain_core.accelerators import isolated_rng

if TYPE_CHECKING:
    from drivetrain_core.extending import OptimizerSource
    from drivetrain_parallel.pipeline.plan import PipelinePlan


def require_separate_steps(
    source: OptimizerSource, model: nn.Module, plan: PipelinePlan
) -> None:
    """Refuses an optimizer that steps one stage by the gradients of others as well.

    It clips or normalises by all gradients that it is given, and on a rank of a pipeline
    these are those of its stages. New ones are tried, each on small parameters of the
    same names; what cannot be tried so is let through.

    Args:
        source: The recipe of the optimizer.
        model: The whole model; it is left as it is.
        plan: How it is split.

    Raises:
        PlanError: The optimizer is such a one.
    """
    blocks = plan.blocks_of(model)
    place = {id(p): n for n, block in enumerate(blocks) for p in block.parameters()}
    stage, loud, is_coupled = 0, [], False
    for name, p in model.named_parameters():
        if id(p) in place:
            stage = plan.stage_of_block(place[id(p)])
        if stage % 2:
            loud.append(name)
    with contextlib.suppress(Exception):  # The optimizer is anybody's.
        quiet, found = (_stepped(source, model, names) for names in ([], loud))
        rest = quiet.keys() - loud
        is_coupled = any(not torch.equal(quiet[name], found[name]) for name in rest)
    if is_coupled:
        raise PlanError(
            Code.CONFLICT,
            "optimizer",
            because=f"{source.kind.__name__} steps a parameter by the gradients of others "
            "as well, and a rank of a pipeline has those of its stages only",
            fix="clip with max_grad_norm= instead of in the optimizer, or use pipeline=1",
        )


def _stepped(
    source: OptimizerSource, model: nn.Module, loud: list[str]
) -> dict[str, nn.Parameter]:
    """Returns small parameters after steps in which some have large gradients."""
    named = {}
    for name, p in model.named_parameters():
        device = "cpu" if p.is_meta else p.device
        small = torch.full([min(n, 2) for n in p.shape], 0.5, device=device)
        named[name] = nn.Parameter(small, requires_grad=p.requires_grad)
        named[name].__dict__.update(vars(p))
    with isolated_rng(0):
        optimizer = source.construct(named)
        own = {id(p) for p in named.values()}
        if not all(id(p) in own for g in optimizer.param_groups for p in g["params"]):
            return named  # It would step the user's parameters.
        for hook in source.hooks.get("_optimizer_step_pre_hooks", {}).values():
            optimizer.register_step_pre_hook(hook)
        for group in optimizer.param_groups:
            group["lr"] = group.get("lr") or 0.1  # A warm-up may begin at zero.
        # At the first step an optimizer may only learn what gradients are like.
        for size in (1.0, 1e4, 1e4):
            for name, p in named.items():
                p.grad = torch.full_like(p, size if name in loud else 1.0)
            optimizer.step()
    return named
