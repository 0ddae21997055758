"""Hooks of parameters, which see the gradient of one part of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

# Those of torch and of these packages are made for it.
_MADE_FOR_IT = ("torch.", "drivetrain_")


def is_linear(hook: Callable[[Tensor], Tensor | None], parameter: Tensor) -> bool:
    """Returns whether a hook doubles where the gradient does: its sum over parts is right.

    A hook that clips, or adds noise, does not; one that scales, or leaves rows out, does.

    Args:
        hook: As `register_hook` takes it.
        parameter: Of which it is.

    Example:
        >>> from functools import partial
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> is_linear(partial(torch.mul, other=0.1), weight)
        True
        >>> is_linear(partial(torch.clamp, min=-1.0, max=1.0), weight)
        False
    """
    is_known = str(getattr(hook, "__module__", "")).startswith(_MADE_FOR_IT)
    if is_known or isinstance(parameter, DTensor):
        return True
    probe = torch.arange(1.0, parameter.numel() + 1).to(parameter).view(parameter.shape)
    probe /= max(1, parameter.numel())

    def hooked(size: float) -> Tensor:
        gradient = probe * size
        found = hook(gradient)
        return gradient if found is None else found

    sizes = (2.0**-20, 1.0, 2.0**10)
    return all(torch.equal(hooked(2 * size), 2 * hooked(size)) for size in sizes)
