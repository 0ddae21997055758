"""The repeated blocks of a model, all lists of them, and a model with fewer."""

from __future__ import annotations

import copy
import io
import marshal
import pickle
import re
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import nn

from drivetrain_core.extending import block_run

# Under such names blocks know their own number, which is another in each.
_NUMBER = re.compile(r"(idx|index|_id|_number|^layer)$")


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
        parts = vars(module)["_modules"].values()
        modules = [nn.Identity() if part is None else part for part in parts]
        run = block_run(modules)
        keys = tuple(module._modules)[run.start : run.stop]
        blocks = modules[run.start : run.stop]
        if not blocks or any(
            next(block.parameters(), None) is None for block in blocks
        ):
            continue
        mixed = (*found.mixed, name) if len(run) < len(module) else found.mixed
        found = BlockLists({**found.containers, name: keys}, mixed)
    return found


class _Settings(pickle.Pickler):
    """Writes down all of a block but the values of its tensors."""

    number = 0

    def reducer_override(self, value: Any) -> Any:
        """Returns what stands for tensors, modules and code."""
        if isinstance(value, torch.Tensor):
            return tuple, ((str(value.dtype), value.requires_grad, *value.shape),)
        if isinstance(value, FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            code = marshal.dumps(value.__code__)
            return object, (), (code, value.__defaults__, value.__kwdefaults__, cells)
        if not isinstance(value, nn.Module):
            return NotImplemented
        own = dict(vars(value))
        for name, of_module in vars(value).items():
            if "_hooks" in name:  # By numbers that count up.
                own[name] = list(of_module.values())
            elif type(of_module) is int and _NUMBER.search(name):
                own[name] = of_module - self.number
        return object, (), (repr(type(value)), own)


def settings_of(block: nn.Module, number: int) -> object:
    """Returns something that is equal for blocks which differ in their weights alone.

    Args:
        block: Any module; its attributes are looked at, and what its functions hold.
        number: Its place among its like, which it may know.

    Returns:
        The number itself where the block holds what cannot be looked at.

    Example:
        >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> settings_of(one, 0) == settings_of(other, 1)
        True
        >>> other.scale = 0.5
        >>> settings_of(one, 0) == settings_of(other, 1)
        False
    """
    written = io.BytesIO()
    settings = _Settings(written)
    settings.number = number
    try:
        settings.dump(block)
    except Exception:  # noqa: BLE001 - attributes may refuse in any way
        return number
    return written.getvalue()


def num_needed(model: nn.Module, lists: BlockLists) -> dict[str, int]:
    """Returns how many first blocks of each list show all kinds of block there are.

    At least two, since a block also has to follow another.
    """
    needed = {}
    for container, keys in lists.containers.items():
        seen: set[object] = set()
        last = 1
        for index, key in enumerate(keys):
            block = model.get_submodule(container).get_submodule(key)
            kind = settings_of(block, index)
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
