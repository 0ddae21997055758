"""Finds the repeated blocks of a model, which can share one compilation."""

from __future__ import annotations

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Returns the members of every list of two or more modules of one class.

    The outermost lists count, and only those whose members hold parameters and other
    modules: a list of single operators has nothing to fuse.

    Example:
        >>> from torch import nn
        >>> def block(): return nn.Sequential(nn.Linear(4, 4), nn.GELU())
        >>> len(repeated_blocks(nn.Sequential(block(), block(), nn.Linear(4, 4))))
        0
        >>> model = nn.Sequential(nn.ModuleList([block(), block()]), nn.Linear(4, 4))
        >>> len(repeated_blocks(model))
        2
    """
    if isinstance(model, nn.ModuleList | nn.Sequential) and _alike(model):
        return list(model)
    return [block for child in model.children() for block in repeated_blocks(child)]


def _alike(blocks: nn.ModuleList | nn.Sequential) -> bool:
    members = list(blocks)
    return (
        len(members) > 1
        and len({type(member) for member in members}) == 1
        and all(next(m.children(), None) is not None for m in members)
        and any(next(m.parameters(), None) is not None for m in members)
    )
