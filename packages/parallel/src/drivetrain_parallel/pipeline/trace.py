"""Finds the repeated blocks of a model by what flows through them, and all around them.

One forward pass is watched. A list of modules is the model's block list when each is
called once, in order, and what one returns is, untouched, what the next takes. Between
two blocks for which that holds the model can be cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core import Code, PlanError
from drivetrain_core.extending import block_run, tensors_of
from drivetrain_parallel.pipeline.plan import blocks_between
from drivetrain_parallel.pipeline.tree import Path, describe_tree, walk_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleResult:
    """A tensor that a module before the blocks returned.

    Args:
        module: The module's name.
        call: Which of its calls, from 0.
        number: Which tensor of what it returned, from 0.
        shape: Its shape.
        dtype: Its dtype.
    """

    module: str
    call: int
    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """How what one block returns reaches the next, unchanged.

    Args:
        sources: The numbers of the tensors in what the block returns, hidden state
            first.
        targets: Where each of them lies in the (args, kwargs) of the next block.
        shapes: Their shapes.
        dtypes: Their dtypes.
    """

    sources: tuple[int, ...]
    targets: tuple[Path, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTrace:
    """The block list of a model, and what runs around it.

    Args:
        container: The name of the list; empty when the model itself is one.
        num_blocks: How many blocks it holds.
        links: For each cut, the first before block 1: how the state crosses it, or
            None where the model cannot be cut.
        refusals: Why, for each cut that is not possible, by its block.
        outputs: The structure of what each block returns, as JSON; None when it
            cannot be rebuilt.
        prologue: Outermost modules with parameters that run before the first block.
        results: What the modules of the prologue return.
        between: Those that run beside the blocks.
        epilogue: Those that run after the last block.
        direct: Parameters of the modules around the list, which no module of their
            own applies.
        idle: Outermost modules with parameters that did not run.
        before: How many other modules stand before the blocks in their list.
        after: How many stand after them.
    """

    container: str
    num_blocks: int
    links: tuple[Link | None, ...]
    refusals: dict[int, str]
    outputs: tuple[Any, ...]
    prologue: tuple[str, ...]
    results: tuple[ModuleResult, ...]
    between: tuple[str, ...]
    epilogue: tuple[str, ...]
    direct: tuple[str, ...]
    idle: tuple[str, ...]
    before: int = 0
    after: int = 0

    def blocks_of(self, model: nn.Module) -> list[nn.Module]:
        """Returns the blocks of the model that was watched, or of a copy, in order."""
        return blocks_between(model, self.container, self.before, self.after)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Returns the blocks before which the model can be cut."""
        return tuple(i for i, link in enumerate(self.links, 1) if link is not None)


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a module, from its beginning to its end."""

    module: nn.Module
    parent: _Call | None
    begin: int
    end: int = -1
    inputs: list[tuple[Path, torch.Tensor, int]] = field(default_factory=list)
    output: Any = None
    # Read at the end of the call: what is returned may be changed later.
    produced: list[torch.Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


def trace_blocks(
    model: nn.Module, run: Callable[[nn.Module], object], *, min_blocks: int = 2
) -> BlockTrace:
    """Returns the block list of a model that a run goes through, and its surroundings.

    Args:
        model: The whole model. Hooks are put on its modules, and taken off again.
        run: Runs the model to its loss on a micro-batch, with gradients on.
        min_blocks: How many blocks the list must have.

    Returns:
        The trace of the list whose blocks have the most parameters and can be cut at
        all; repeated blocks, see `block_run`, go before lists of unlike modules.

    Raises:
        PlanError: There is no such list. The message has the nearest one, and why
            it is none.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
        >>> trace = trace_blocks(model, lambda m: m(torch.ones(1, 2)).sum())
        >>> trace.container, trace.num_blocks, trace.cuts
        ('', 3, (1, 2))
    """
    calls = _watch(model, run)
    by_module: dict[int, list[_Call]] = {}
    for call in calls:
        by_module.setdefault(id(call.module), []).append(call)
    refused = []
    for name, modules, places in _candidates(model, min_blocks):
        blocks, called = modules[places.start : places.stop], name or "the model itself"
        reason = _why_not_blocks(blocks, by_module)
        if reason:
            refused.append(f"{called} ({len(blocks)}): {reason}")
            continue
        chosen = [by_module[id(block)][0] for block in blocks]
        links, refusals = _links(chosen)
        if any(links):
            found = _surroundings(model, name, chosen, calls, links, refusals)
            after = len(modules) - places.stop
            return replace(found, before=places.start, after=after)
        refused.append(f"{called}: {next(iter(refusals.values()))}")
    raise PlanError(
        Code.NOT_APPLICABLE,
        "pipeline",
        because="the model has no list of blocks that can be cut; "
        + (refused[0] if refused else f"no list has {min_blocks} blocks or more"),
        fix="keep the repeated blocks side by side in one ModuleList or Sequential, and "
        "call each once, in order",
    )


def _watch(model: nn.Module, run: Callable[[nn.Module], object]) -> list[_Call]:
    """Returns every call of a module during a run, in the order of their beginnings."""
    calls: list[_Call] = []
    active: list[_Call] = []
    clock = 0

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal clock
        clock += 1
        call = _Call(module, active[-1] if active else None, clock)
        call.inputs = [(p, t, t._version) for p, t in walk_tensors((args, kwargs))]
        calls.append(call)
        active.append(call)

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal clock
        del args, kwargs
        clock += 1
        call = active.pop()
        assert call.module is module
        call.end, call.output = clock, output
        call.produced = list(tensors_of(output))
        call.versions = [t._version for t in call.produced]

    handles = []
    try:
        for module in model.modules():
            handles.append(
                module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            )
            handles.append(module.register_forward_hook(leave, with_kwargs=True))
        with torch.enable_grad():
            run(model)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _candidates(
    model: nn.Module, min_blocks: int
) -> list[tuple[str, list[nn.Module], range]]:
    """Returns each list with the places of its blocks: the repeated ones, or all."""
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        modules = list(module.children())
        if len(modules) != len(module):
            continue
        repeated, whole = block_run(modules), range(len(modules))
        for run in (repeated, whole) if repeated != whole else (whole,):
            blocks = modules[run.start : run.stop]
            size = sum(p.numel() for block in blocks for p in block.parameters())
            if len(run) >= min_blocks and size:
                found.append((run != repeated, -size, name, modules, run))
    found.sort(key=lambda item: item[:2])
    return [(name, modules, run) for _, _, name, modules, run in found]


def _why_not_blocks(blocks: list[nn.Module], by_module: dict[int, list[_Call]]) -> str:
    last = -1
    for index, block in enumerate(blocks):
        calls = by_module.get(id(block), [])
        if len(calls) != 1:
            return f"block {index} is called {len(calls)} times in a forward, not once"
        if calls[0].begin < last:
            return f"block {index} is called before block {index - 1} has ended"
        last = calls[0].end
    return ""


def _links(blocks: list[_Call]) -> tuple[tuple[Link | None, ...], dict[int, str]]:
    links: list[Link | None] = []
    refusals: dict[int, str] = {}
    first = {id(tensor) for _, tensor, _ in blocks[0].inputs}
    earlier: set[Any] = set()
    for index in range(1, len(blocks)):
        before, after = blocks[index - 1], blocks[index]
        earlier |= {t.grad_fn for t in before.produced if t.grad_fn is not None}
        found = _crossing(before, after)
        numbers = {id(t) for t in before.produced}
        derived = next(
            (
                path
                for path, tensor, _ in after.inputs
                if id(tensor) not in numbers
                and id(tensor) not in first
                and _reaches(tensor, earlier)
            ),
            None,
        )
        reason = ""
        if derived is not None:
            reason = (
                f"the model computes an input of block {index} at {derived} out of what "
                "the blocks before it returned"
            )
        elif found is None:
            reason = (
                f"block {index} takes nothing that block {index - 1} returned as is"
            )
        if reason:
            refusals[index] = reason
        links.append(None if reason else found)
    return tuple(links), refusals


def _crossing(before: _Call, after: _Call) -> Link | None:
    """Returns the tensors that go from one block into the next, unchanged."""
    given = {id(tensor) for _, tensor, _ in before.inputs}
    sources, targets, tensors = [], [], []
    for path, tensor, version in after.inputs:
        for number, made in enumerate(before.produced):
            if made is tensor and version == before.versions[number]:
                sources.append(number)
                targets.append(path)
                tensors.append(tensor)
                break
    # Something must flow that the block itself has made, and that can be trained.
    if not any(t.is_floating_point() and id(t) not in given for t in tensors):
        return None
    return Link(
        sources=tuple(sources),
        targets=tuple(targets),
        shapes=tuple(tuple(t.shape) for t in tensors),
        dtypes=tuple(t.dtype for t in tensors),
    )


def _reaches(tensor: torch.Tensor, nodes: set[Any]) -> bool:
    """Returns whether a tensor was computed out of the results of some nodes."""
    todo, seen = [tensor.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if node in nodes:
            return True
        seen.add(node)
        todo.extend(following for following, _ in node.next_functions)
    return False


def _surroundings(
    model: nn.Module,
    container: str,
    blocks: list[_Call],
    calls: list[_Call],
    links: tuple[Link | None, ...],
    refusals: dict[int, str],
) -> BlockTrace:
    begin, end = blocks[0].begin, blocks[-1].end
    spine_calls = []
    call = blocks[0].parent
    while call is not None:
        spine_calls.append(call)
        call = call.parent
    spine = {id(call.module) for call in spine_calls}
    inside = {id(call) for call in [*blocks, *spine_calls]}
    names: dict[int, str] = {}
    for name, module in model.named_modules():
        names.setdefault(id(module), name)
    groups: dict[str, list[str]] = {"prologue": [], "between": [], "epilogue": []}
    called: set[int] = {id(call.module) for call in calls}
    results: list[ModuleResult] = []
    counts: dict[str, int] = {}
    for call in calls:
        outermost = call.parent is None or call.parent in spine_calls
        weightless = next(call.module.parameters(), None) is None
        if id(call) in inside or not outermost or weightless:
            continue
        if id(call.module) in spine:
            continue
        when = "between"
        if call.end < begin:
            when = "prologue"
        elif call.begin > end:
            when = "epilogue"
        name = names[id(call.module)]
        if when == "prologue":
            number = counts.get(name, 0)
            counts[name] = number + 1
            results += _results(name, number, call.produced)
        if name not in groups[when]:
            groups[when].append(name)
    spine.add(id(model.get_submodule(container)))
    direct, idle = _rest(model, spine, called)
    return BlockTrace(
        container=container,
        num_blocks=len(blocks),
        links=links,
        refusals=refusals,
        outputs=tuple(_described(call.output) for call in blocks),
        prologue=tuple(groups["prologue"]),
        results=tuple(results),
        between=tuple(groups["between"]),
        epilogue=tuple(groups["epilogue"]),
        direct=tuple(direct),
        idle=tuple(idle),
    )


def _results(name: str, call: int, tensors: list[torch.Tensor]) -> list[ModuleResult]:
    return [
        ModuleResult(
            module=name,
            call=call,
            number=number,
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
        )
        for number, tensor in enumerate(tensors)
    ]


def _described(output: Any) -> Any:
    try:
        return describe_tree(output)
    except TypeError:
        return None


def _rest(
    model: nn.Module, spine: set[int], called: set[int]
) -> tuple[list[str], list[str]]:
    """Returns the parameters on the spine, and the modules that did not run."""
    direct: list[str] = []
    idle: list[str] = []
    prefixes = _spine_names(model, spine)
    for prefix, module in prefixes:
        dot = f"{prefix}." if prefix else ""
        direct += [
            f"{dot}{key}" for key, p in module._parameters.items() if p is not None
        ]
        for key, child in module._modules.items():
            if child is None or id(child) in spine or _any_called(child, called):
                continue
            if next(child.parameters(), None) is not None:
                idle.append(f"{dot}{key}")
    return direct, idle


def _spine_names(model: nn.Module, spine: set[int]) -> Iterable[tuple[str, nn.Module]]:
    # A container that is never called itself, such as a ModuleDict, belongs to it.
    for name, module in model.named_modules():
        holder = isinstance(module, nn.ModuleDict | nn.ModuleList)
        if id(module) in spine or name == "" or (holder and _holds(module, spine)):
            yield name, module


def _holds(module: nn.Module, spine: set[int]) -> bool:
    return any(id(inner) in spine for inner in module.modules())


def _any_called(module: nn.Module, called: set[int]) -> bool:
    return any(id(inner) in called for inner in module.modules())
