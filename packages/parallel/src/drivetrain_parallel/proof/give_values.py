"""Gives a model without weights values with which a plan can be proven."""

from __future__ import annotations

import torch
from torch import nn


def give_values(model: nn.Module) -> nn.Module:
    """Gives each parameter on the meta device values that hide nothing, in place.

    They are drawn: no parameter is zero, no two are alike, and what goes through a
    matrix stays of its size. What has values keeps them; ties are kept.

    Example:
        >>> model = give_values(nn.Linear(4, 4, device="meta"))
        >>> bool(model.weight.isfinite().all())
        True
    """
    generator = torch.Generator().manual_seed(0)
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) not in made:
                value = _drawn(parameter, name, generator).to(parameter.dtype)
                made[id(parameter)] = nn.Parameter(
                    value, requires_grad=parameter.requires_grad
                )
            module._parameters[name] = made[id(parameter)]
    return model


def _drawn(
    parameter: nn.Parameter, name: str, generator: torch.Generator
) -> torch.Tensor:
    if not parameter.is_floating_point():
        return torch.zeros(parameter.shape)
    drawn = torch.randn(parameter.shape, generator=generator)
    if parameter.dim() > 1:
        return drawn.mul_(parameter.shape[-1] ** -0.5)
    # What scales is near one, what shifts near zero.
    return drawn.mul_(0.1).add_(float("weight" in name))
