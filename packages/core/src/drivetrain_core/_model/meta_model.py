"""Models whose parameters are on the meta device: recognised, and moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from drivetrain_core._errors import ProgramError

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
        # Torch replaces the parameters of a model that goes outside of torch, one for each
        # name: tied ones would train apart, and an optimizer that is there the old ones.
        if torch._C._get_privateuse1_backend_name() == device.type:
            _move_outside(model, device)
        return model.to(device)
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


def _move_outside(model: nn.Module, device: torch.device) -> None:
    """Moves the parameters as the objects that they are, all of them or none."""
    moved = []
    try:
        for name, parameter in model.named_parameters():
            there = torch.nn.Parameter(parameter.detach().to(device))
            there.requires_grad_(parameter.requires_grad)
            if parameter.grad is not None:
                there.grad = parameter.grad.to(device)
            moved.append((name, parameter, there))
            _swap(parameter, there)
    except RuntimeError as error:
        for _, parameter, there in moved[:-1]:
            _swap(parameter, there)
        message = (
            f"the parameter {moved[-1][0]} cannot be moved to {device}, since something refers to "
            f"it, such as the graph of a loss that is kept: {error}. Move the model "
            "before it is used, or build it by a function"
        )
        raise ProgramError(message) from error


def _swap(parameter: Any, other: Any) -> None:
    """Exchanges what two parameters hold, but for hooks and attributes."""
    if parameter.is_leaf and parameter.device != other.device:
        kept = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
        attributes = dict(parameter.__dict__)
        torch.utils.swap_tensors(parameter, other)  # type: ignore[no-untyped-call]
        parameter.__dict__.update(attributes)
        parameter._backward_hooks, parameter._post_accumulate_grad_hooks = kept
