"""What each block and the rest of a model cost: measured, or counted."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core.extending import tensors_of
from drivetrain_parallel.pipeline.balance import PipelineCosts

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_parallel.pipeline.trace import BlockTrace

_REPEATS = 3


def count_costs(model: nn.Module, trace: BlockTrace) -> PipelineCosts:
    """Returns the parameters of each part that are multiplied with, in millions.

    A table of embeddings costs nothing there: it is only looked up.

    Args:
        model: The whole model, on any device.
        trace: Its block list and surroundings.

    Example:
        >>> from drivetrain_parallel.pipeline.trace import trace_blocks
        >>> model = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9))
        >>> trace = trace_blocks(model, lambda m: m(torch.ones(1, 9)).sum())
        >>> count_costs(model, trace).blocks
        (9e-05, 9e-05)
    """

    def size(names: tuple[str, ...]) -> float:
        return sum(_size(model.get_submodule(name)) for name in names)

    blocks = trace.blocks_of(model)
    return PipelineCosts(
        prologue=size(trace.prologue),
        blocks=tuple(_size(block) for block in blocks),
        epilogue=size(trace.epilogue),
    )


def _size(module: nn.Module) -> float:
    tables = {
        id(inner.weight)
        for inner in module.modules()
        if isinstance(inner, nn.Embedding)
    }
    return sum(p.numel() for p in module.parameters() if id(p) not in tables) / 1e6


def measure_costs(
    model: nn.Module,
    trace: BlockTrace,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
) -> PipelineCosts:
    """Returns the seconds of each part, forward and backward together.

    Blocks of one class and size get one cost, their median, so that noise does not
    make equal stages unequal.

    Args:
        model: The whole model; its gradients are cleared.
        trace: Its block list and surroundings.
        batch: A micro-batch on the model's device.
        loss_of: Runs the model to its loss.
    """
    blocks = trace.blocks_of(model)
    runs = [_clock(model, blocks, batch, loss_of) for _ in range(1 + _REPEATS)][1:]
    middle = [statistics.median(column) for column in zip(*runs, strict=True)]
    alike: dict[tuple[type, float], list[float]] = {}
    kinds = [(type(block), _size(block)) for block in blocks]
    for kind, seconds in zip(kinds, middle[1:-1], strict=True):
        alike.setdefault(kind, []).append(seconds)
    return PipelineCosts(
        prologue=middle[0],
        blocks=tuple(statistics.median(alike[kind]) for kind in kinds),
        epilogue=middle[-1],
    )


def _clock(
    model: nn.Module,
    blocks: list[nn.Module],
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
) -> list[float]:
    """Returns the seconds of the prologue, of each block, and of the epilogue."""
    device = next(tensors_of(batch)).device
    forward: list[float] = []
    # The time at which the gradient of each block's output was there.
    backward: dict[int, float] = {}

    def now() -> float:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter()

    def watch(tree: Any, index: int) -> None:
        def passed(grad: torch.Tensor) -> None:
            del grad
            backward[index] = now()

        state = next((t for t in tensors_of(tree) if t.requires_grad), None)
        if state is not None and not state.is_leaf:
            state.register_hook(passed)  # type: ignore[no-untyped-call]

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        del module
        watch((args, kwargs), -1)
        forward.append(now())

    def after(module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        watch(output, len(forward) - 1)
        forward.append(now())

    handles = [blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
    handles += [block.register_forward_hook(after) for block in blocks]
    try:
        begin = now()
        loss = loss_of(model, batch)
        middle = now()
        loss.backward()  # type: ignore[no-untyped-call]
        end = now()
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
    stops = [begin, *forward, middle]
    spent = [later - earlier for earlier, later in itertools.pairwise(stops)]
    # Backwards: the epilogue first, then the blocks from the last one, then the rest.
    marks = [middle]
    for index in reversed(range(-1, len(blocks))):
        marks.append(backward.get(index, end if index < 0 else marks[-1]))
    marks.append(end)
    back = [later - earlier for earlier, later in itertools.pairwise(marks)]
    return [one + two for one, two in zip(spent, reversed(back), strict=True)]
