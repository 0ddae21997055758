"""Rollback of a step that is lost: of what it did to buffers, and of what the script did then.

A step that is lost has run forward passes, which write to buffers, and its script goes on
behind `with step:` as if it counted. Both happen again when the step is repeated.
"""

from __future__ import annotations

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
        # By id: a buffer, its version, and its copy.
        self._kept: dict[int, tuple[Tensor, int, Tensor]] = {}

    @torch.no_grad()
    def keep(self) -> None:
        """Copies those that may have changed since the last time."""
        self._held = [{**one._buffers} for one in self._modules]
        before, self._kept = self._kept, {}
        stale: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for one in [one for held in self._held for one in held.values()]:
            if one is None or one.layout != torch.strided:
                continue
            local, known = _local(one), before.get(id(one))
            version = -1 if local.is_inference() else local._version
            copy = local.clone() if known is None else known[2]
            self._kept[id(one)] = one, version, copy
            if known is None or (known[1] == version and one.numel() > _MOST_VALUES):
                continue
            copies, sources = stale.setdefault(one.dtype, ([], []))
            copies.append(copy)
            sources.append(local)
        for copies, sources in stale.values():
            torch._foreach_copy_(copies, sources)

    @torch.no_grad()
    def put_back(self) -> None:
        """Makes all buffers what they were."""
        for module, held in zip(self._modules, self._held, strict=False):
            module._buffers.clear()
            module._buffers.update(held)
        for one, _, copy in self._kept.values():
            if not torch.equal(_local(one), copy):
                _local(one).copy_(copy)


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
        """Puts it into the same state."""
        targets, finish = targets_in(state, self._entries, self._specs)
        for name, one in targets.items():
            one.copy_(self._tensors[name])
        for do in finish:
            do()


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
