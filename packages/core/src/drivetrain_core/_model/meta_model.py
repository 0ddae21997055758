"""Models whose parameters are on the meta device: recognised, and moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import nn

Weights = Literal["build", "reset", "restore"]
"""Where the first weights of a model come from; see `accelerate`."""


def is_meta_model(model: nn.Module) -> bool:
    """Returns whether a parameter of a model is on the meta device."""
    return any(parameter.is_meta for parameter in model.parameters())


def move_to(model: nn.Module, device: torch.device) -> nn.Module:
    """Moves what a model has to a device, in place; what is on meta stays there.

    Example:
        >>> import torch
        >>> model = move_to(torch.nn.Linear(2, 2, device="meta"), torch.device("cpu"))
        >>> model.weight.is_meta
        True
    """
    if not is_meta_model(model):
        # Else a device from outside of torch gets new parameters, one for each name: those
        # that are tied would train apart, and an optimizer that is there the old ones.
        is_outside = torch._C._get_privateuse1_backend_name() == device.type
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(before or is_outside)
        try:
            return model.to(device)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
    # Parameters are replaced when they get their values.
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.is_meta:
                parameter.data = parameter.data.to(device)
                module._parameters[name] = parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)
    return model
