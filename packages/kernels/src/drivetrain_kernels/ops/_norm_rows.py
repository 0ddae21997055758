"""Facts, checks and Triton kernel that the normalising ops share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_kernels._available import triton_missing
from drivetrain_kernels._check import (
    check_at_least,
    check_floating,
    check_like,
    check_number,
    check_one_of,
    check_shape,
    is_distributed,
)
from drivetrain_kernels._errors import ShapeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAX_COLUMNS = 65536  # of a row that one program keeps on chip
_CASTS = ("input", "float32")


@dataclass(frozen=True, kw_only=True, slots=True)
class NormFacts:
    """What the choice of a normalising op's implementation depends on.

    Args:
        device: The type of the device.
        dtype: That of the rows.
        num_elements: Those of all rows.
        num_columns: The length of a row.
        weight_dtype: That of the weight; None without one.
        bias_dtype: That of the bias; None without one.
        distributed: Whether rows or weight are DTensors.
        offset: What is added to the weight.
        cast: When the row becomes narrow again.
    """

    device: str
    dtype: torch.dtype
    num_elements: int
    num_columns: int
    weight_dtype: torch.dtype | None
    bias_dtype: torch.dtype | None = None
    distributed: bool = False
    offset: float = 0.0
    cast: str = "input"


def norm_facts(
    op: str,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    eps: float,
    offset: float = 0.0,
    cast: str = "input",
) -> NormFacts:
    """Checks the arguments of a normalising op and returns its facts.

    Args:
        op: The op's name.
        x: The rows.
        weight: Of one row.
        bias: Likewise.
        residual: What is added to them first, if anything.
        eps: Added to the mean of the squares.
        offset: Added to the weight.
        cast: When the row becomes narrow again.

    Raises:
        ShapeError: The shapes do not fit each other.
        DtypeError: A dtype is not floating-point, or they do not fit each other.
        DeviceError: The tensors lie on different devices.
        OptionError: `eps` or `cast` has no allowed value.
    """
    check_floating(op, "x", x)
    if x.dim() == 0:
        message = f"{op}: x must have at least one dimension, got a scalar"
        raise ShapeError(message)
    check_like(op, ("x", x), ("residual", residual))
    check_like(op, ("x", x), ("weight", weight), ("bias", bias), float32_allowed=True)
    check_shape(op, "residual", residual, x.shape)
    check_shape(op, "weight", weight, x.shape[-1:])
    check_shape(op, "bias", bias, x.shape[-1:])
    check_at_least(op, "eps", eps, 0.0)
    check_number(op, "offset", offset)
    check_one_of(op, "cast", cast, _CASTS)
    return NormFacts(
        device=x.device.type,
        dtype=x.dtype,
        num_elements=x.numel(),
        num_columns=x.shape[-1],
        weight_dtype=None if weight is None else weight.dtype,
        bias_dtype=None if bias is None else bias.dtype,
        distributed=is_distributed(x, residual, weight, bias),
        offset=offset,
        cast=cast,
    )


def run_triton(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    *,
    bias: Tensor | None = None,
    seed: Tensor | None = None,
    eps: float,
    offset: float = 0.0,
    p: float = 0.0,
    cast: str = "float32",
    layer: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the normalised rows, and the rows before that, by the Triton kernel.

    Args:
        x: The rows.
        residual: What is added to them first; without it the second result is empty.
        weight: Of one row.
        bias: Likewise.
        seed: The key of the dropout's mask.
        eps: Added to the mean of the squares.
        offset: Added to the weight.
        p: The share that dropout drops.
        cast: When the row becomes narrow again.
        layer: Whether the mean is subtracted.
    """
    # Triton is an extra, which only those need who run its kernels.
    from drivetrain_kernels.ops import _triton_norm

    if weight is None and offset:
        weight = x.new_zeros(x.shape[-1])
    options = (eps, offset, p, layer, cast == "input")
    normed, total, *_ = _triton_norm.norm(x, residual, weight, bias, seed, *options)
    return normed, total


def triton_refuses(facts: NormFacts) -> str | None:
    """Says why the Triton kernels cannot take a call, or None if they can.

    Args:
        facts: Those of the call.
    """
    if facts.num_columns > MAX_COLUMNS:
        return f"takes rows of at most {MAX_COLUMNS} columns, got {facts.num_columns}"
    if facts.distributed:
        return "takes no DTensor"
    return triton_missing(facts.device)
