"""Checks of arguments that the ops share; each message names op, rule and value."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_kernels._errors import DeviceError, DtypeError, OptionError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

# Those of numpy are `Real` and `Integral`; sizes may be symbols while one traces.
_NUMBERS = (int, float, Real, torch.SymInt, torch.SymFloat)
_WHOLE = (int, Integral, torch.SymInt)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Returns the dtype that autocast gives to matrix products, or None without it.

    Args:
        device: Where the tensors lie.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     autocast_dtype(torch.device("cpu"))
        torch.bfloat16
    """
    if device == torch.device("meta") or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def is_distributed(*tensors: Tensor | None) -> bool:
    """Returns whether one of the tensors is sharded or replicated (a DTensor).

    Args:
        *tensors: None is left out.

    Example:
        >>> is_distributed(torch.zeros(2), None)
        False
    """
    plain = (torch.Tensor, torch.nn.Parameter, type(None))
    return any(type(t) not in plain and hasattr(t, "to_local") for t in tensors)


def replicated_beside(like: Tensor, tensor: Tensor) -> Tensor:
    """Returns a tensor that every rank made, as a DTensor beside one that is.

    Args:
        like: The other one.
        tensor: Equal on all ranks.

    Example:
        >>> replicated_beside(torch.zeros(2), torch.ones(2))
        tensor([1., 1.])
    """
    if not is_distributed(like):
        return tensor
    made: Tensor = type(like).from_local(tensor, like.device_mesh)  # type: ignore[attr-defined]
    return made


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context in which operators keep the dtypes of their tensors.

    Args:
        device: Where the tensors lie.

    Example:
        >>> with without_autocast(torch.device("cpu")):
        ...     autocast_dtype(torch.device("cpu"))
    """
    if autocast_dtype(device) is None:
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def _check_tensor(op: str, name: str, value: object) -> Tensor:
    if not isinstance(value, torch.Tensor):
        message = f"{op}: {name} must be a tensor, got {type(value).__name__}"
        raise DtypeError(message)
    return value


def check_floating(op: str, name: str, tensor: object) -> None:
    """Raises unless a tensor is real and floating-point.

    Raises:
        DtypeError: It is integer, boolean, complex or of an eight-bit dtype, or it is
            no tensor at all.
    """
    dtype = _check_tensor(op, name, tensor).dtype
    if dtype not in FLOATS:
        message = (
            f"{op}: {name} must be float64, float32, bfloat16 or float16, got "
            f"{dtype}; convert it first"
        )
        raise DtypeError(message)


def check_integer(op: str, name: str, tensor: object) -> None:
    """Raises unless a tensor is int64 or int32.

    Raises:
        DtypeError: It has another dtype, or is no tensor at all.
    """
    dtype = _check_tensor(op, name, tensor).dtype
    if dtype not in {torch.int64, torch.int32}:
        message = f"{op}: {name} must be int64 or int32, got {dtype}"
        raise DtypeError(message)


def check_like(
    op: str,
    first: tuple[str, Tensor],
    *others: tuple[str, object],
    float32_allowed: bool = False,
) -> None:
    """Raises unless tensors have the device and the dtype of the first.

    Args:
        op: The op's name.
        first: Name and tensor that the others must be like.
        others: Names and tensors; None is left out.
        float32_allowed: Whether float32 is allowed beside the first's dtype, as
            weights have it under autocast.

    Raises:
        DeviceError: One lies on another device, or is a DTensor where the first is none
            or the other way round.
        DtypeError: One has another dtype, or is no tensor at all.
    """
    first_name, like = first
    for name, value in others:
        if value is None:
            continue
        tensor = _check_tensor(op, name, value)
        check_device(op, name, tensor, first)
        check_distribution(op, name, tensor, first)
        if float32_allowed and tensor.dtype == torch.float32:
            continue
        if tensor.dtype != like.dtype:
            also = " or be float32" if float32_allowed else ""
            message = (
                f"{op}: {name} must have the dtype of {first_name}, {like.dtype}"
                f"{also}, got {tensor.dtype}; convert one of them"
            )
            raise DtypeError(message)


def check_distribution(
    op: str, name: str, tensor: Tensor, first: tuple[str, Tensor]
) -> None:
    """Raises unless both tensors are DTensors, or none is.

    Args:
        op: The op's name.
        name: The tensor's name.
        tensor: The tensor.
        first: Name and tensor of the other one.

    Raises:
        DeviceError: Only one is, and torch was not told to take the other as replicated.
    """
    one, other = is_distributed(first[1]), is_distributed(tensor)
    if one == other:
        return
    sharded, plain = (first[0], name) if one else (name, first[0])
    dispatcher = type(first[1] if one else tensor)._op_dispatcher  # type: ignore[attr-defined]
    if not dispatcher._allow_implicit_replication:
        message = (
            f"{op}: {sharded} is a DTensor and {plain} is none; call the op within the "
            f"forward that gathers {sharded}, give {sharded}.full_tensor(), or make "
            f"{plain} a DTensor on the same mesh"
        )
        raise DeviceError(message)


def check_device(op: str, name: str, tensor: Tensor, first: tuple[str, Tensor]) -> None:
    """Raises unless a tensor lies on the device of another.

    Args:
        op: The op's name.
        name: The tensor's name.
        tensor: The tensor.
        first: Name and tensor of the other one.

    Raises:
        DeviceError: It lies elsewhere.
    """
    first_name, like = first
    if tensor.device != like.device:
        message = (
            f"{op}: {name} must be on the device of {first_name}, {like.device}, got "
            f"{tensor.device}; move one of them"
        )
        raise DeviceError(message)


def check_shape(
    op: str, name: str, tensor: Tensor | None, shape: Sequence[int]
) -> None:
    """Raises unless a tensor has a shape; None passes.

    Raises:
        ShapeError: It has another one.
    """
    if tensor is not None and tuple(tensor.shape) != tuple(shape):
        message = (
            f"{op}: {name} must have the shape {tuple(shape)}, got "
            f"{tuple(tensor.shape)}"
        )
        raise ShapeError(message)


def check_number(op: str, name: str, value: object) -> None:
    """Raises unless a value is a real number; a boolean is none.

    Raises:
        OptionError: It is something else.
    """
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        return
    message = f"{op}: {name} must be a number, got {value!r}"
    raise OptionError(message)


def check_whole(op: str, name: str, value: object) -> None:
    """Raises unless a value is a whole number; neither 2.0 nor a boolean is one.

    Raises:
        OptionError: It is something else.
    """
    if isinstance(value, _WHOLE) and not isinstance(value, bool):
        return
    message = f"{op}: {name} must be a whole number, got {value!r}"
    raise OptionError(message)


def check_at_least(op: str, name: str, value: float, least: float) -> None:
    """Raises unless a number is large enough; NaN is not.

    Raises:
        OptionError: It is smaller, or no number.
    """
    check_number(op, name, value)
    if not value >= least:
        message = f"{op}: {name} must be >= {least:g}, got {value}"
        raise OptionError(message)


def check_positive(op: str, name: str, value: float) -> None:
    """Raises unless a number is finite and more than zero.

    Raises:
        OptionError: It is not, or no number.
    """
    check_number(op, name, value)
    if not 0.0 < value < math.inf:
        message = f"{op}: {name} must be a finite number > 0, got {value}"
        raise OptionError(message)


def check_one_of(op: str, name: str, value: Any, allowed: Collection[Any]) -> None:
    """Raises unless an option has one of its values.

    Raises:
        OptionError: It has another one.
    """
    if value not in allowed:
        message = (
            f"{op}: {name} must be one of {', '.join(map(repr, allowed))}, "
            f"got {value!r}"
        )
        raise OptionError(message)
