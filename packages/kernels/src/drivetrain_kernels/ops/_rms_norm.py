"""RMSNorm: rows divided by their root mean square.

For a row x of H columns, weight w, and an offset o that is 0, or 1 for weights that
are stored as their difference from one (Gemma):

    y = x r (o + w),  r = (mean(x^2) + eps)^-1/2

Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, equation 4:
https://arxiv.org/abs/1910.07467.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._compiled import compiled_form
from drivetrain_kernels._dispatch import (
    Example,
    Implementation,
    Op,
    reference_form,
    triton_form,
)
from drivetrain_kernels._fast_path import is_watched
from drivetrain_kernels.ops._norm_rows import (
    NormFacts,
    norm_facts,
    run_triton,
    triton_refuses,
)
from drivetrain_kernels.ops._rms_norm_eager import RowsNorm

if TYPE_CHECKING:
    from torch import Tensor

_EAGER_FROM = 2**17  # elements; below, both take the same time


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    cast: str = "input",
    impl: str = "auto",
) -> Tensor:
    """Returns the rows of `x`, each divided by its root mean square and weighted.

    Args:
        x: Any shape, `(..., H)`; the rows are along the last dimension.
        weight: `(H,)`, of the dtype of `x` or float32; None for none.
        eps: Added to the mean of the squares.
        offset: Added to the weight: 1.0 for weights around zero, as Gemma keeps them.
        cast: When the normalised row, which is float32, becomes the dtype of `x`:
            "input" before the weight (Llama), "float32" after it (Gemma).
        impl: "auto", or "triton", "eager", "torch", "compiled" or "reference".

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        ShapeError: `weight` does not fit the rows.
        DtypeError: A dtype is not floating-point, or that of `weight` does not fit.
        ImplementationError: The implementation asked for cannot take this call.

    Example:
        >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), eps=0.0)
        tensor([[0.8485, 2.2627]])
    """
    found = facts(x, weight, eps=eps, offset=offset, cast=cast)
    return OP.run(found, impl, x, weight, eps, offset, cast)  # type: ignore[no-any-return]


facts = partial(norm_facts, "rms_norm", eps=1e-6)


def by_formula(
    x: Tensor, weight: Tensor | None, eps: float, offset: float, cast: str
) -> Tensor:
    """Returns what the equation says, in torch's operators; see `rms_norm`."""
    wide = x.to(accumulation_dtype(x.dtype))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if cast == "input":
        normed = normed.to(x.dtype)
    if weight is None:
        scaled = normed * (1.0 + offset) if offset else normed
        return scaled.to(x.dtype)
    if cast == "float32":
        weight = weight.to(wide.dtype)
    return (normed * (weight + offset if offset else weight)).to(x.dtype)


def by_torch(
    x: Tensor, weight: Tensor | None, eps: float, offset: float, cast: str
) -> Tensor:
    """Returns what torch's own operator gives; see `rms_norm`."""
    del offset, cast
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def torch_refuses(facts: NormFacts) -> str | None:
    """Says why torch's own operator cannot take a call, or None if it can.

    Args:
        facts: Those of the call.
    """
    if facts.offset:
        return "knows no offset"
    if facts.weight_dtype is not None and facts.weight_dtype != facts.dtype:
        return f"needs a weight of the dtype of x, got {facts.weight_dtype}"
    narrow = facts.dtype in {torch.bfloat16, torch.float16}
    if narrow and facts.weight_dtype is not None and facts.cast == "input":
        return "rounds after the weight in a narrow dtype, got cast='input'"
    return None


def by_rows(
    x: Tensor, weight: Tensor | None, eps: float, offset: float, cast: str
) -> Tensor:
    """Returns what few passes over the rows give; see `rms_norm`."""
    if is_watched(x, weight):
        # A compiler makes one kernel of plain operators; this would stay as it is.
        return by_formula(x, weight, eps, offset, cast)
    if weight is None:
        weight = x.new_full(x.shape[-1:], 1.0 + offset)
    elif offset:
        weight = weight + offset
    out: Tensor = RowsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def eager_refuses(facts: NormFacts) -> str | None:
    """Says why the few passes cannot take a call, or None if they can.

    Args:
        facts: Those of the call.
    """
    if facts.dtype not in {torch.float32, torch.float64}:
        return f"computes in the dtype of x, got {facts.dtype}"
    if facts.weight_dtype not in {None, facts.dtype}:
        return f"needs a weight of the dtype of x, got {facts.weight_dtype}"
    return None


def eager_automatic(facts: NormFacts) -> str | None:
    """Says why "auto" does not take the few passes, or None if it does.

    Args:
        facts: Those of the call.
    """
    if facts.device != "cpu":
        return f"is faster than torch's own on a CPU, the tensors are on {facts.device}"
    if facts.num_elements < _EAGER_FROM:
        return f"is faster from {_EAGER_FROM} elements on, got {facts.num_elements}"
    return None


def _triton(
    x: Tensor, weight: Tensor | None, eps: float, offset: float, cast: str
) -> Tensor:
    return run_triton(x, None, weight, eps=eps, offset=offset, cast=cast)[0]


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    x = torch.randn(6, 40, device=device, dtype=dtype)
    return (x, torch.ones(40, device=device, dtype=dtype)), {}


OP = Op(
    name="rms_norm",
    implementations=(
        triton_form(
            _triton,
            refuse=triton_refuses,
            because="one pass over the rows, forward and backward",
        ),
        Implementation(
            name="eager",
            call=by_rows,
            refuse=eager_refuses,
            automatic=eager_automatic,
            because="fewer passes over the rows than torch's own, mostly backward",
        ),
        Implementation(
            name="torch",
            call=by_torch,
            refuse=torch_refuses,
            because="torch's own operator gives the same",
        ),
        compiled_form(by_formula),
        reference_form(by_formula),
    ),
    facts=facts,
    example=_example,
)
