"""Finds what each stage needs of the modules around the blocks, by what reaches what.

Every stage is run with what the modules before the blocks return cut off as inputs. What
the stage's result then has a gradient for is what it needs: of a module's results, of a
module's own weights (an embedding that the head reads), of loose parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.accelerators import isolated_rng
from drivetrain_parallel.pipeline.plan import (
    Boundary,
    ModuleOutput,
    PipelinePlan,
    StagePlan,
)
from drivetrain_parallel.pipeline.sequential import (
    StageRun,
    run_in_turn,
    stages_in_process,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from drivetrain_parallel.pipeline.stage import StageModule
    from drivetrain_parallel.pipeline.trace import BlockTrace, ModuleResult


@dataclass(frozen=True, slots=True)
class _Needs:
    """What one stage needs, by name.

    Args:
        results: Results of modules that run before the blocks.
        parameters: All parameters that reach its own result.
        foreign: Those of them that only modules have that it does not run.
    """

    results: frozenset[ModuleOutput]
    parameters: frozenset[str]
    foreign: frozenset[str]


def keep_all(trace: BlockTrace, ranges: Sequence[tuple[int, int]]) -> PipelinePlan:
    """Returns the plan in which every stage runs all that comes before the blocks.

    It is right whenever a plan can be, and shares the most parameters.

    Args:
        trace: The model's.
        ranges: The blocks of each stage.
    """
    return _plan(trace, ranges, {})


def derive_plan(
    whole: nn.Module,
    trace: BlockTrace,
    ranges: Sequence[tuple[int, int]],
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
) -> PipelinePlan:
    """Returns the plan in which each stage holds as little as it can.

    Args:
        whole: The model; each of its parameters requires a gradient.
        trace: The model's.
        ranges: The blocks of each stage.
        batch: A micro-batch.
        loss_of: Runs the model to its loss.
    """
    results = [_output(result) for result in trace.results if _movable(trace, result)]
    modules = tuple(dict.fromkeys(result.module for result in results))
    everything = dict.fromkeys(range(1, len(ranges)), modules)
    trial = _plan(trace, ranges, everything, tuple(results), probing=True)
    stages = stages_in_process(whole, trial, loss_of, attributes=whole)
    with isolated_rng():
        runs = run_in_turn(stages, batch)
    names = {id(p): n for n, p in whole.named_parameters()}
    needs = [
        _needs(whole, stage, run, names)
        for stage, run in zip(stages, runs, strict=True)
    ]
    return _least(whole, trace, ranges, modules, tuple(results), needs)


def _movable(trace: BlockTrace, result: ModuleResult) -> bool:
    """Returns whether a module runs before the blocks only."""
    return result.module not in (*trace.between, *trace.epilogue)


def _output(result: ModuleResult) -> ModuleOutput:
    return ModuleOutput(module=result.module, call=result.call, number=result.number)


def _needs(
    whole: nn.Module, stage: StageModule, run: StageRun, names: dict[int, str]
) -> _Needs:
    plan = stage.plan
    outputs = list(run.outputs)
    if not stage.is_first and not stage.is_last:
        # The others only pass through.
        outputs = outputs[: len(plan.boundaries[stage.stage_index].sources)]
    outputs = [t for t in outputs if t.requires_grad]
    parameters = [p for p in whole.parameters() if p.requires_grad]
    inputs = [t for t in run.received if t.requires_grad]
    found: dict[int, bool] = {}
    if outputs:
        total = torch.stack([t.float().sum() for t in outputs]).sum()
        grads = torch.autograd.grad(
            total, [*inputs, *parameters], allow_unused=True, retain_graph=True
        )
        for tensor, grad in zip([*inputs, *parameters], grads, strict=True):
            found[id(tensor)] = grad is not None
    results: set[ModuleOutput] = set()
    if not stage.is_first:
        boundary = plan.boundaries[stage.stage_index - 1]
        sent = run.received[len(boundary.sources) :]
        results = {
            item
            for item, tensor in zip(boundary.modules, sent, strict=True)
            # Whether whole numbers are read no gradient tells.
            if found.get(id(tensor), not tensor.is_floating_point())
        }
    reached = {names[id(p)] for p in parameters if found.get(id(p))}
    held = {names[id(p)] for p in stage.model.parameters()}
    return _Needs(frozenset(results), frozenset(reached), frozenset(reached - held))


def _least(
    whole: nn.Module,
    trace: BlockTrace,
    ranges: Sequence[tuple[int, int]],
    modules: tuple[str, ...],
    results: tuple[ModuleOutput, ...],
    needs: Sequence[_Needs],
) -> PipelinePlan:
    names = {id(p): n for n, p in whole.named_parameters()}
    own = {
        name: {names[id(p)] for p in whole.get_submodule(name).parameters()}
        for name in modules
    }
    received: dict[int, tuple[str, ...]] = {}
    zeroed: dict[int, tuple[str, ...]] = {}
    needed: list[set[ModuleOutput]] = [set()]
    for index in range(1, len(ranges)):
        # A module whose weight the stage uses without calling it stays as it is.
        kept = {name for name in modules if own[name] & needs[index].foreign}
        reads = {item for item in needs[index].results if item.module not in kept}
        needed.append(reads)
        read = {item.module for item in reads}
        received[index] = tuple(m for m in modules if m in read)
        zeroed[index] = tuple(m for m in modules if m not in read | kept)
    crossing = [
        tuple(r for r in results if any(r in later for later in needed[index:]))
        for index in range(1, len(ranges))
    ]
    loose = {
        index: tuple(n for n in trace.direct if n not in needs[index].parameters)
        for index in range(len(ranges))
    }
    unread = {
        name for name in trace.direct if not any(name in n.parameters for n in needs)
    }
    loose[0] = tuple(name for name in loose[0] if name not in unread)
    plan = _plan(trace, ranges, received)
    return replace(
        plan,
        boundaries=tuple(
            replace(boundary, modules=items)
            for boundary, items in zip(plan.boundaries, crossing, strict=True)
        ),
        stages=tuple(
            replace(stage, zeroed=zeroed.get(index, ()), zeroed_parameters=loose[index])
            for index, stage in enumerate(plan.stages)
        ),
    )


def _plan(
    trace: BlockTrace,
    ranges: Sequence[tuple[int, int]],
    received: dict[int, tuple[str, ...]],
    results: tuple[ModuleOutput, ...] = (),
    *,
    probing: bool = False,
) -> PipelinePlan:
    boundaries = []
    for begin, _ in ranges[1:]:
        link = trace.links[begin - 1]
        assert link is not None
        boundaries.append(
            Boundary(
                block=begin,
                sources=link.sources,
                targets=link.targets,
                modules=results,
                shapes=link.shapes,
                dtypes=tuple(str(d).removeprefix("torch.") for d in link.dtypes),
            )
        )
    stages = []
    for index, (begin, end) in enumerate(ranges):
        dropped = [] if index == 0 or probing else list(trace.idle)
        if index < len(ranges) - 1 and not probing:
            again = (*trace.prologue, *trace.between)
            dropped += [name for name in trace.epilogue if name not in again]
        stages.append(
            StagePlan(
                begin=begin,
                end=end,
                received=received.get(index, ()),
                dropped=tuple(dropped),
            )
        )
    return PipelinePlan(
        container=trace.container,
        num_blocks=trace.num_blocks,
        stages=tuple(stages),
        boundaries=tuple(boundaries),
        outputs=trace.outputs,
        prologue=trace.prologue,
        before=trace.before,
        after=trace.after,
    )
