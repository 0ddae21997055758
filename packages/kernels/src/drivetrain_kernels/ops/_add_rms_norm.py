"""A residual added, and the sum normalised: what stands between two sublayers.

    z = x + residual,  y = z (mean(z^2) + eps)^-1/2 (o + w)

Both are returned: y for the next sublayer, z for the addition after it. The sum is
rounded to its dtype before it is normalised, so that y is what follows from z.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_kernels._check import check_floating
from drivetrain_kernels._compiled import compiled_form
from drivetrain_kernels._dispatch import (
    Example,
    Implementation,
    Op,
    reference_form,
    triton_form,
)
from drivetrain_kernels.ops import _rms_norm
from drivetrain_kernels.ops._norm_rows import (
    NormFacts,
    norm_facts,
    run_triton,
    triton_refuses,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    cast: str = "input",
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Returns the normalised sum of `x` and `residual`, and the sum.

    Args:
        x: Any shape, `(..., H)`.
        residual: Of the shape and dtype of `x`.
        weight: `(H,)`, of the dtype of `x` or float32; None for none.
        eps: Added to the mean of the squares.
        offset: Added to the weight: 1.0 for weights around zero, as Gemma keeps them.
        cast: When the normalised row, which is float32, becomes the dtype of `x`:
            "input" before the weight (Llama), "float32" after it (Gemma).
        impl: "auto", or "triton", "compiled", "eager", "torch" or "reference".

    Returns:
        The normalised sum, and the sum, each of the shape and dtype of `x`.

    Raises:
        ShapeError: The shapes do not fit each other.
        DtypeError: A dtype is not floating-point, or they do not fit each other.
        ImplementationError: The implementation asked for cannot take this call.

    Example:
        >>> normed, total = add_rms_norm(torch.ones(1, 2), torch.tensor([[2.0, 3.0]]))
        >>> total
        tensor([[3., 4.]])
        >>> normed
        tensor([[0.8485, 1.1314]])
    """
    found = facts(x, residual, weight, eps=eps, offset=offset, cast=cast)
    return OP.run(  # type: ignore[no-any-return]
        found, impl, x, residual, weight, eps, offset, cast
    )


def facts(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    cast: str = "input",
) -> NormFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        x: See `add_rms_norm`.
        residual: Likewise.
        weight: Likewise.
        eps: Likewise.
        offset: Likewise.
        cast: Likewise.
    """
    check_floating("add_rms_norm", "residual", residual)
    return norm_facts(
        "add_rms_norm",
        x,
        residual=residual,
        weight=weight,
        eps=eps,
        offset=offset,
        cast=cast,
    )


def _added_then(norm: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns the addition, followed by an implementation of `rms_norm`."""

    def run(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        total = x + residual
        return norm(total, *rest), total

    return run


_reference = _added_then(_rms_norm.by_formula)


def _triton(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    offset: float,
    cast: str,
) -> tuple[Tensor, Tensor]:
    return run_triton(x, residual, weight, eps=eps, offset=offset, cast=cast)


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    x, r, w = (torch.randn(s, device=device, dtype=dtype) for s in ((6, 40),) * 3)
    return (x, r, w[0]), {}


OP = Op(
    name="add_rms_norm",
    implementations=(
        triton_form(
            _triton,
            refuse=triton_refuses,
            because="one pass over the rows, forward and backward",
        ),
        compiled_form(_reference),
        Implementation(
            name="eager",
            call=_added_then(_rms_norm.by_rows),
            refuse=_rms_norm.eager_refuses,
            automatic=_rms_norm.eager_automatic,
            because="an addition, then few passes over the rows",
        ),
        Implementation(
            name="torch",
            call=_added_then(_rms_norm.by_torch),
            refuse=_rms_norm.torch_refuses,
            because="an addition, then torch's own fused operator",
        ),
        reference_form(_reference),
    ),
    facts=facts,
    example=_example,
)
