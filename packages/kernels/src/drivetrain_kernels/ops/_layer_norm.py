"""LayerNorm: rows shifted to mean 0 and scaled to variance 1.

    y = (x - mean(x)) (var(x) + eps)^-1/2 w + b

Ba, Kiros and Hinton, Layer Normalization, 2016, section 3:
https://arxiv.org/abs/1607.06450.
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
from drivetrain_kernels.ops._norm_rows import (
    NormFacts,
    norm_facts,
    run_triton,
    triton_refuses,
)

if TYPE_CHECKING:
    from torch import Tensor


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    impl: str = "auto",
) -> Tensor:
    """Returns the rows of `x`, each with mean 0 and variance 1, weighted and shifted.

    Args:
        x: Any shape, `(..., H)`; the rows are along the last dimension.
        weight: `(H,)`, of the dtype of `x` or float32; None for none.
        bias: Likewise.
        eps: Added to the variance.
        impl: "auto", or "triton", "torch", "compiled" or "reference".

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        ShapeError: `weight` or `bias` does not fit the rows.
        DtypeError: A dtype is not floating-point, or they do not fit each other.
        ImplementationError: The implementation asked for cannot take this call.

    Example:
        >>> layer_norm(torch.tensor([[1.0, 3.0]]), eps=0.0)
        tensor([[-1.,  1.]])
    """
    found = facts(x, weight, bias, eps=eps)
    return OP.run(found, impl, x, weight, bias, eps)  # type: ignore[no-any-return]


facts = partial(norm_facts, "layer_norm", eps=1e-5, cast="float32")


def _reference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    wide = x.to(accumulation_dtype(x.dtype))
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed * weight
    if bias is not None:
        normed = normed + bias
    return normed.to(x.dtype)


def _torch(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _torch_refuses(facts: NormFacts) -> str | None:
    if facts.weight_dtype not in {None, facts.dtype}:
        return f"needs a weight of the dtype of x, got {facts.weight_dtype}"
    if facts.bias_dtype not in {None, facts.dtype}:
        return f"needs a bias of the dtype of x, got {facts.bias_dtype}"
    return None


def _triton(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return run_triton(x, None, weight, bias=bias, eps=eps, layer=True)[0]


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    x, w, b = (torch.randn(s, device=device, dtype=dtype) for s in ((6, 40), 40, 40))
    return (x, w, b), {}


OP = Op(
    name="layer_norm",
    implementations=(
        triton_form(
            _triton,
            refuse=triton_refuses,
            because="one pass over the rows, forward and backward",
        ),
        Implementation(
            name="torch",
            call=_torch,
            refuse=_torch_refuses,
            because="torch's own operator gives the same",
        ),
        compiled_form(_reference),
        reference_form(_reference),
    ),
    facts=facts,
    example=_example,
)
