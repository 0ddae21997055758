"""Which slice of which parameter of the user's model each parameter here is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from drivetrain_parallel.tensor.local_view import packed_of, part_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class CanonicalSlice:
    """A block of a parameter as the user's model has it.

    Args:
        name: The parameter's name in the user's model.
        global_shape: Its shape there.
        offset: Where the block begins in each dimension.
    """

    name: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]


def canonical_slices(model: nn.Module) -> dict[str, CanonicalSlice]:
    """Returns for each parameter of a model what it was before the plan was applied.

    Matrices that hold several parts, such as query, key and value, are divided by
    `apply_tensor_plan`; every other parameter is itself. Tied parameters are there
    once, under their first name.

    Example:
        >>> from torch import nn
        >>> canonical_slices(nn.Linear(2, 3))["bias"]
        CanonicalSlice(name='bias', global_shape=(3,), offset=(0,))
    """
    parts: dict[str, CanonicalSlice] = {}
    for prefix, module in model.named_modules():
        before = f"{prefix}." if prefix else ""
        for name, packed in packed_of(module).items():
            start = 0
            for index, size in enumerate(packed.sizes):
                offset = [0] * len(packed.shape)
                offset[packed.dim] = start
                parts[before + part_name(name, index)] = CanonicalSlice(
                    name=before + name, global_shape=packed.shape, offset=tuple(offset)
                )
                start += size
    whole = {
        name: CanonicalSlice(
            name=name, global_shape=tuple(p.shape), offset=(0,) * p.ndim
        )
        for name, p in model.named_parameters()
    }
    return {name: parts.get(name, own) for name, own in whole.items()}


def full_parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns every parameter whole, under its canonical name.

    All ranks of the tensor axis must call this.
    """
    return _full(model, lambda parameter: parameter.detach())


def full_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns every gradient whole, under the canonical name of its parameter.

    All ranks of the tensor axis must call this. A parameter without a gradient is not
    there.
    """
    return _full(model, lambda parameter: parameter.grad)


def _full(
    model: nn.Module, of: Callable[[torch.Tensor], torch.Tensor | None]
) -> dict[str, torch.Tensor]:
    slices = canonical_slices(model)
    pieces: dict[str, list[torch.Tensor]] = {}
    dims: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        value = of(parameter)
        if value is None:
            continue
        full = value.full_tensor() if isinstance(value, DTensor) else value
        where = slices[name]
        pieces.setdefault(where.name, []).append(full)
        dims[where.name] = next((d for d, n in enumerate(where.offset) if n), 0)
    return {
        name: torch.cat(found, dims[name]) if len(found) > 1 else found[0]
        for name, found in pieces.items()
    }
