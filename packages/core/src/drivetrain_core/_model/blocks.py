"""Finds the repeated blocks of a model, such as the layers of a transformer."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from drivetrain_core._context import BlockFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

NO_BLOCKS = (
    "no repeated blocks: no two modules of one class and size side by side in a "
    "ModuleList or Sequential"
)
"""What a model lacks in which `find_blocks` finds none."""


def block_run(modules: Sequence[nn.Module]) -> range:
    """Returns which modules of a list are its blocks.

    They are all of them where all are of one class. Of a mixed list they are the
    longest run of neighbours of one class with parameters of the same names and
    shapes, and of several such runs the one with the most parameters.

    Args:
        modules: What a `ModuleList` or `Sequential` holds, in order.

    Returns:
        Their places; an empty range when there are no two.

    Example:
        >>> from torch import nn
        >>> block_run([nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 4)])
        range(1, 3)
        >>> block_run([nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)])
        range(0, 0)
    """
    if len(modules) < 2:
        return range(0)
    if len({type(module) for module in modules}) == 1:
        return range(len(modules))
    best, most = range(0), (1, 0)
    place = 0
    for (_, shapes), group in itertools.groupby(modules, _kind):
        length = len(list(group))
        size = (length, sum(shape.numel() for _, shape in shapes))
        if shapes and size > most:
            best, most = range(place, place + length), size
        place += length
    return best if len(best) > 1 else range(0)


def _kind(module: nn.Module) -> tuple[type, tuple[tuple[str, torch.Size], ...]]:
    return type(module), tuple((n, p.shape) for n, p in module.named_parameters())


def find_blocks(model: nn.Module) -> BlockFacts | None:
    """Returns the blocks of the list whose blocks hold the most parameters.

    A list counts when it is a `ModuleList` or `Sequential` with two blocks or more, see
    `block_run`, that have parameters of their own.

    Example:
        >>> from torch import nn
        >>> layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        >>> find_blocks(nn.ModuleDict({"layers": layers}))
        BlockFacts(container='layers', kind='Linear', count=3, before=0)
        >>> find_blocks(nn.Sequential(nn.Embedding(9, 4), *layers, nn.Linear(4, 9)))
        BlockFacts(container='', kind='Linear', count=3, before=1)
    """
    from torch import nn

    best, most = None, 0
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        parts = vars(module)["_modules"].values()
        modules = [nn.Identity() if part is None else part for part in parts]
        run = block_run(modules)
        blocks = modules[run.start : run.stop]
        size = sum(p.numel() for p in nn.ModuleList(blocks).parameters())
        if size > most:
            kind, count = type(blocks[0]).__name__, len(run)
            best = BlockFacts(container=name, kind=kind, count=count, before=run.start)
            most = size
    return best


def repeated_blocks(model: nn.Module, facts: BlockFacts | None) -> list[nn.Module]:
    """Returns the blocks themselves, in order; none when the model has none."""
    if facts is None:
        return []
    modules = model.get_submodule(facts.container)._modules.values()
    blocks = list(modules)[facts.before : facts.before + facts.count]
    return [block for block in dict.fromkeys(blocks) if block is not None]


def called(block: nn.Module) -> list[nn.Module]:
    """Returns a block, or what it holds if it is a list, which has no forward."""
    if getattr(block.forward, "__name__", "") != "_forward_unimplemented":
        return [block]
    return [part for child in block.children() for part in called(child)]
