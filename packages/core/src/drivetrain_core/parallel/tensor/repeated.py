"""The repeated blocks of a model, all lists of them, and a model with fewer."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

__all__ = ["BlockLists", "find_block_lists", "num_needed", "shortened"]


@dataclass(frozen=True, slots=True)
class BlockLists:
    """Where the repeated blocks of a model are.

    Args:
        containers: The names of lists of blocks of one class, with their lengths.

    Example:
        >>> lists = BlockLists({"encoder.layers": 2})
        >>> lists.pattern("encoder.layers.1.up"), lists.block("encoder.layers.1.up")
        ('encoder.layers.*.up', 'encoder.layers.1')
        >>> lists.pattern("encoder.norm"), lists.block("encoder.norm")
        ('encoder.norm', '')
    """

    containers: dict[str, int]

    def block(self, name: str) -> str:
        """Returns the block that a module or a parameter is in; empty if none."""
        for container in self.containers:
            prefix = f"{container}." if container else ""
            index = name.removeprefix(prefix).split(".", 1)[0]
            if name.startswith(prefix) and index.isdigit():
                return f"{prefix}{index}"
        return ""

    def pattern(self, name: str) -> str:
        """Returns a name with `*` for the number of its block."""
        block = self.block(name)
        if not block:
            return name
        start = block.rsplit(".", 1)[0] + "." if "." in block else ""
        return f"{start}*{name[len(block) :]}"

    def blocks(self) -> list[str]:
        """Returns the names of all blocks."""
        return [
            f"{container}.{index}" if container else str(index)
            for container, length in self.containers.items()
            for index in range(length)
        ]


def find_block_lists(model: nn.Module) -> BlockLists:
    """Returns every list of two blocks or more of one class, the outermost ones.

    Example:
        >>> find_block_lists(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
        BlockLists(containers={'': 2})
    """
    found: dict[str, int] = {}
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}." if outer else "") for outer in found):
            continue
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
            continue
        children = list(module)
        same = len({type(child) for child in children}) == 1
        if same and all(
            next(child.parameters(), None) is not None for child in children
        ):
            found[name] = len(children)
    return BlockLists(found)


def num_needed(model: nn.Module, lists: BlockLists) -> dict[str, int]:
    """Returns how many first blocks of each list show all kinds of block there are.

    At least two, since a block also has to follow another.
    """
    needed = {}
    for container in lists.containers:
        seen: set[tuple[object, ...]] = set()
        last = 1
        for index, block in enumerate(model.get_submodule(container).children()):
            kind = tuple((n, tuple(p.shape)) for n, p in block.named_parameters())
            if kind not in seen:
                seen.add(kind)
                last = index
        needed[container] = max(2, last + 1)
    return needed


def shortened(model: nn.Module, lists: BlockLists, *, at_least: int = 2) -> nn.Module:
    """Returns a copy of a model that has only the first blocks of each list.

    Only what is kept is copied. What is left keeps its names. The copy may not run,
    where code counts on the number of blocks.

    Args:
        model: The model; it is left as it is.
        lists: Its lists of blocks.
        at_least: How many blocks are kept, though fewer show all kinds.
    """
    needed = {n: max(k, at_least) for n, k in num_needed(model, lists).items()}
    memo: dict[int, object] = {}
    for container, number in needed.items():
        module = model.get_submodule(container)
        for child in list(module.children())[number:]:
            memo[id(child)] = None
    copied = copy.deepcopy(model, memo)
    for container, number in needed.items():
        module = copied.get_submodule(container)
        for name in list(module._modules)[number:]:
            del module._modules[name]
    return copied
