"""The repeated blocks of a model, all lists of them, and a model with fewer."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from drivetrain_core.extending import block_run


@dataclass(frozen=True, slots=True)
class BlockLists:
    """Where the repeated blocks of a model are.

    Args:
        containers: The names of lists that hold blocks of one class, each with what
            the blocks are called in it.
        mixed: Those of the lists that hold other modules as well.

    Example:
        >>> lists = BlockLists({"encoder.layers": ("0", "1")})
        >>> lists.pattern("encoder.layers.1.up"), lists.block("encoder.layers.1.up")
        ('encoder.layers.*.up', 'encoder.layers.1')
        >>> lists.pattern("encoder.norm"), lists.block("encoder.norm")
        ('encoder.norm', '')
    """

    containers: dict[str, tuple[str, ...]]
    mixed: tuple[str, ...] = ()

    def block(self, name: str) -> str:
        """Returns the block that a module or a parameter is in; empty if none."""
        for container, keys in self.containers.items():
            prefix = f"{container}." if container else ""
            key = name.removeprefix(prefix).split(".", 1)[0]
            if name.startswith(prefix) and key in keys:
                return f"{prefix}{key}"
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
            f"{container}.{key}" if container else key
            for container, keys in self.containers.items()
            for key in keys
        ]


def find_block_lists(model: nn.Module) -> BlockLists:
    """Returns every list that holds two blocks or more, the outermost ones.

    Example:
        >>> find_block_lists(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))).blocks()
        ['0', '1']
        >>> layers = [nn.Linear(2, 2) for _ in range(3)]
        >>> find_block_lists(nn.Sequential(nn.Embedding(9, 2), *layers)).blocks()
        ['1', '2', '3']
    """
    found = BlockLists({})
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or found.block(name):
            continue
        run = block_run(list(module))
        keys = tuple(module._modules)[run.start : run.stop]
        blocks = [module.get_submodule(key) for key in keys]
        if not blocks or any(
            next(block.parameters(), None) is None for block in blocks
        ):
            continue
        mixed = (*found.mixed, name) if len(run) < len(module) else found.mixed
        found = BlockLists({**found.containers, name: keys}, mixed)
    return found


def num_needed(model: nn.Module, lists: BlockLists) -> dict[str, int]:
    """Returns how many first blocks of each list show all kinds of block there are.

    At least two, since a block also has to follow another.
    """
    needed = {}
    for container, keys in lists.containers.items():
        seen: set[tuple[object, ...]] = set()
        last = 1
        for index, key in enumerate(keys):
            block = model.get_submodule(container).get_submodule(key)
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
        for key in lists.containers[container][number:]:
            memo[id(module.get_submodule(key))] = None
    copied = copy.deepcopy(model, memo)
    for container, number in needed.items():
        module = copied.get_submodule(container)
        for key in lists.containers[container][number:]:
            del module._modules[key]
    return copied
