"""Modules whose parameters are DTensors, and whose code sees this rank's part.

The parameters of such a module are DTensors wherever they are listed, so optimizers,
clipping, FSDP2 and checkpoints get what they expect. The module's own code finds plain
tensors under the old names, with gradients that flow back to the DTensors.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from drivetrain_parallel.tensor.exchange import enter, own_gradient

_PACKED = "_packed_parameters"
# The gradient of their weight is a product of its own, and shares no memory.
_FRESH = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Packed:
    """What a parameter that was divided into parts looked like.

    Args:
        dim: The dimension that was divided.
        sizes: The parts along it.
        shape: The whole.
    """

    def __init__(
        self, dim: int, sizes: tuple[int, ...], shape: tuple[int, ...]
    ) -> None:
        self.dim = dim
        self.sizes = sizes
        self.shape = shape


def packed_of(module: nn.Module) -> dict[str, Packed]:
    """Returns what was divided into parts, by the old name of the parameter."""
    found: dict[str, Packed] = module.__dict__.setdefault(_PACKED, {})
    return found


def part_name(name: str, index: int) -> str:
    """Returns the name of one part of a divided parameter.

    Example:
        >>> part_name("weight", 0)
        'weight_part0'
    """
    return f"{name}_part{index}"


def view_locally(
    module: nn.Module, *, partial: bool = False, added_later: tuple[str, ...] = ()
) -> None:
    """Lets a module's code see this rank's part of each of its DTensors.

    Args:
        module: Its own parameters are DTensors; it gets a subclass of its class.
        partial: The gradients of its replicated parameters are parts of a sum.
        added_later: Parameters that its code sees as absent or zero.
    """
    whole = tuple(n for n, p in module._parameters.items() if p is not None)
    parts = packed_of(module)
    of_parts = {part_name(n, i) for n, p in parts.items() for i in range(len(p.sizes))}
    names = tuple(n for n in whole if n not in of_parts)
    kind = _local_class(type(module), names, tuple(parts), partial, added_later)  # type: ignore[arg-type]
    module.__class__ = kind


@cache
def _local_class(
    base: type[nn.Module],
    names: tuple[str, ...],
    packed: tuple[str, ...],
    partial: bool,
    added_later: tuple[str, ...],
) -> type[nn.Module]:
    members: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    for name in names:
        if name in added_later:
            members[name] = property(_absent(name))
        else:
            members[name] = property(_local(name, partial))
    for name in packed:
        members[name] = property(_joined(name))
    return type(base.__name__, (base,), members)


def _local(name: str, partial: bool) -> Any:
    def get(module: nn.Module) -> torch.Tensor | None:
        parameter: Any = module._parameters[name]
        # FSDP2 asks for its shards by getattr; those lie on more axes than this one.
        if not isinstance(parameter, DTensor) or parameter.device_mesh.ndim > 1:
            return parameter  # type: ignore[no-any-return]
        local: torch.Tensor = parameter.to_local()
        if not (name == "weight" and isinstance(module, _FRESH)):
            local = own_gradient(local)
        if partial and parameter.placements[0].is_replicate():
            return enter(local, parameter.device_mesh)
        return local

    return get


def _joined(name: str) -> Any:
    def get(module: nn.Module) -> torch.Tensor:
        packed = packed_of(module)[name]
        parts = (
            _local(part_name(name, index), False)(module)
            for index in range(len(packed.sizes))
        )
        return torch.cat(tuple(parts), packed.dim)

    return get


def _absent(name: str) -> Any:
    local = _local(name, False)

    def get(module: nn.Module) -> torch.Tensor | None:
        bias: Any = local(module)
        # FSDP2 must find its shard, see above.
        if bias is None or isinstance(bias, DTensor):
            return bias
        return None if isinstance(module, nn.Linear) else torch.zeros_like(bias)

    return get
