"""Copies of a model whose tensors are shared, empty or on meta."""

from __future__ import annotations

import torch
from torch import nn

from drivetrain_parallel.proof.copies import copy_structure, with_values


def shadow(model: nn.Module) -> nn.Module:
    """Returns a copy on the same storage whose gradients are its own.

    Each floating-point parameter requires a gradient there, frozen ones as well, so
    that a backward pass shows all that a result depends on.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> copied = shadow(model)
        >>> copied.weight is model.weight
        False
        >>> copied.weight.data_ptr() == model.weight.data_ptr()
        True
    """
    copied = with_values(model)
    for p in copied.parameters():
        p.requires_grad_(p.is_floating_point() or p.is_complex())
    return copied


def shared_copy(model: nn.Module) -> nn.Module:
    """Returns a copy of the structure that holds the very same parameters."""
    return copy_structure(model, lambda parameter: parameter, torch.Tensor.clone)


def meta_twin(module: nn.Module) -> nn.Module:
    """Returns a copy without memory, which knows shapes and dtypes alone.

    Example:
        >>> meta_twin(nn.Linear(2, 3))(torch.ones(5, 2, device="meta")).shape
        torch.Size([5, 3])
    """
    return without_memory(module).requires_grad_(False)


def without_memory(module: nn.Module) -> nn.Module:
    """Returns a copy on the meta device that is as trainable as the original.

    Example:
        >>> copied = without_memory(nn.Linear(2, 3))
        >>> copied.weight.is_meta, copied.weight.requires_grad
        (True, True)
    """
    return copy_structure(
        module,
        lambda p: nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad),
        lambda b: b.detach().to("meta"),
    )


def replace_module(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Puts a module in the place of another one, under each of its names."""
    for parent in list(root.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = new
