"""Arithmetic on what a step needs besides tensors: numbers, or tensors on a device.

A capturable step keeps its step count, and all that follows from it, on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

Number = Any
"""A float, or a tensor of one element or of one element a parameter."""


def is_one(value: Number) -> bool:
    """Whether a number is known to be 1, so that a factor can be left out.

    Example:
        >>> is_one(1.0), is_one(torch.tensor(1.0))
        (True, False)
    """
    return not isinstance(value, torch.Tensor) and value == 1


def in_dtype(value: Number, dtype: torch.dtype) -> Number:
    """Returns a number; where it is a tensor, in a dtype.

    Example:
        >>> in_dtype(2.0, torch.float64), in_dtype(torch.tensor(2.0), torch.float64)
        (2.0, tensor(2., dtype=torch.float64))
    """
    return value.to(dtype) if isinstance(value, torch.Tensor) else value


def inverse_or_zero(value: Number) -> Number:
    """Returns `1 / value`, and 0 for 0.

    Example:
        >>> inverse_or_zero(4.0), inverse_or_zero(0.0)
        (0.25, 0.0)
        >>> inverse_or_zero(torch.tensor([4.0, 0.0]))
        tensor([0.2500, 0.0000])
    """
    return where_positive(value, 1 / _not_zero(value), 0.0)


def _not_zero(value: Number) -> Number:
    if isinstance(value, torch.Tensor):
        return torch.where(value == 0, torch.ones_like(value), value)
    return value or 1.0


def where_positive(value: Number, then: Number, otherwise: Number) -> Number:
    """Returns one of two numbers, depending on the sign of a third.

    Example:
        >>> where_positive(0.0, 1.0, 2.0), where_positive(torch.tensor(3.0), 1.0, 2.0)
        (2.0, tensor(1.))
    """
    if isinstance(value, torch.Tensor):
        chosen: Tensor = torch.where(
            value > 0, _beside(value, then), _beside(value, otherwise)
        )
        return chosen
    return then if value > 0 else otherwise


def _beside(value: Tensor, number: Number) -> Tensor:
    if isinstance(number, torch.Tensor):
        return number.to(value.dtype)
    # Written by a kernel: a copy from the host would wait for the device.
    return torch.full_like(value, number)


def row_of(scalars: Any, row: int) -> Any:
    """Returns the scalars of one parameter, where some hold one element for each."""
    return scalars._replace(
        **{
            name: value[row]
            for name, value in scalars._asdict().items()
            if isinstance(value, torch.Tensor) and value.dim()
        }
    )
