"""Rollback of a step that is lost: of what it did to buffers, and of what the script did then.

A step that is lost has run forward passes, which write to buffers, and its script goes on
behind `with step:` as if it counted. Both happen again when the step is repeated.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from drivetrain_core.services import pack_state
from drivetrain_elastic._training._state_transfer import specs_of, targets_in

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch import Tensor

# Such buffers are copied in each step: what is written by `.data` counts no version.
_MOST_VALUES = 1 << 16


class BufferCopies:
    """Buffers as they were when a step began. Those that do not change are copied once.

    Args:
        model: Whose buffers.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = [one for one in model.modules() if one._buffers]
        self._held: list[dict[str, Tensor | None]] = []
        self._found: list[Tensor | None] = []
        # Each with its copy; those that are copied always are sorted by dtype.
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._small: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        self._large: list[tuple[Tensor, Tensor]] = []
        self._versions: dict[int, int] = {}

    @torch.no_grad()
    def keep(self) -> None:
        """Copies those that may have changed since the last time."""
        self._held = [{**one._buffers} for one in self._modules]
        found = [one for held in self._held for one in held.values()]
        if len(found) != len(self._found) or not all(map(is_, found, self._found)):
            self._find(found)
        for copies, sources in self._small.values():
            torch._foreach_copy_(copies, sources)
        for one, copy in self._large:
            if one._version != self._versions.get(id(one)):
                copy.copy_(one)
        self._versions = {id(one): one._version for one, _ in self._large}

    def _find(self, found: list[Tensor | None]) -> None:
        copies = {id(one): copy for one, copy in self._pairs}
        dense = [
            one for one in found if one is not None and one.layout == torch.strided
        ]
        local = [*map(_local, dense)]
        self._pairs = [
            (one, copies[id(one)] if id(one) in copies else one.clone())
            for one in local
        ]
        self._found, self._small, self._large = found, {}, []
        for one, copy in self._pairs:
            if one.numel() > _MOST_VALUES and not one.is_inference():
                self._large.append((one, copy))
            else:
                of_dtype = self._small.setdefault(one.dtype, ([], []))
                of_dtype[0].append(copy)
                of_dtype[1].append(one)

    @torch.no_grad()
    def put_back(self) -> None:
        """Makes all buffers what they were."""
        for module, held in zip(self._modules, self._held, strict=False):
            if [*map(id, module._buffers.values())] != [*map(id, held.values())]:
                module._buffers.clear()
                module._buffers.update(held)
        for one, copy in self._pairs:
            if not torch.equal(one, copy):
                one.copy_(copy)


class StateCopy:
    """A copy of a state, which can be put back.

    Args:
        state: As `drivetrain_core.services.pack_state` takes it.

    Example:
        >>> weight, notes = torch.ones(2), {"best": 1.0}
        >>> copy = StateCopy({"weight": weight, "notes": notes})
        >>> weight.zero_(), notes.update(best=0.5)
        (tensor([0., 0.]), None)
        >>> copy.put_back({"weight": weight, "notes": notes})
        >>> weight, notes
        (tensor([1., 1.]), {'best': 1.0})
    """

    def __init__(self, state: MutableMapping[str, Any]) -> None:
        packed = pack_state(state)
        self._entries, self._specs = packed.entries, specs_of(packed)
        self._tensors = {name: one.clone() for name, one in packed.tensors.items()}

    @torch.no_grad()
    def put_back(self, state: MutableMapping[str, Any]) -> None:
        """Puts it into the same state: into what has changed, since a load may do more."""
        now = pack_state(state)
        changed = {
            key: state[key]
            for key, entry in now.entries.items()
            if entry != self._entries[key]
            or not all(
                self._is_same(name, now.tensors[name]) for name in entry["tensors"]
            )
        }
        targets, finish = targets_in(changed, self._entries, self._specs)
        for name, one in targets.items():
            one.copy_(self._tensors[name])
        for do in finish:
            do()
        state.update(changed)

    def _is_same(self, name: str, tensor: Tensor) -> bool:
        return torch.equal(_local(tensor), _local(self._tensors[name]))


class GeneratorState:
    """The state of a random number generator, as checkpoints and other ranks take it.

    Args:
        generator: Whose state.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        """Returns it."""
        return {"state": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes that of another one."""
        self._generator.set_state(state["state"])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
