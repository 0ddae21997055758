"""Dropout, a residual added, and the sum normalised, in one pass without a mask.

    z = residual + keep * x / (1 - p),  y = z (mean(z^2) + eps)^-1/2 (o + w)

The mask follows from a seed alone, so that the backward makes it again instead of
keeping it, and every implementation drops the same elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._check import (
    check_floating,
    check_integer,
    check_number,
    check_shape,
    check_whole,
    replicated_beside,
)
from drivetrain_kernels._compiled import compiled_form
from drivetrain_kernels._dispatch import Example, Op, reference_form, triton_form
from drivetrain_kernels._errors import DeviceError, OptionError
from drivetrain_kernels.ops import _add_rms_norm, _rms_norm
from drivetrain_kernels.ops._norm_rows import (
    NormFacts,
    norm_facts,
    run_triton,
    triton_refuses,
)
from drivetrain_kernels.ops._philox import keep_mask

if TYPE_CHECKING:
    from torch import Generator, Tensor

_OP = "dropout_add_rms_norm"


def dropout_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    p: float = 0.1,
    training: bool = True,
    seed: Tensor | int | None = None,
    generator: Generator | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    cast: str = "input",
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Returns the normalised sum of `residual` and dropped `x`, and the sum.

    Args:
        x: Any shape, `(..., H)`; what dropout acts on.
        residual: Of the shape and dtype of `x`.
        weight: `(H,)`, of the dtype of `x` or float32; None for none.
        p: The share of the elements of `x` that are dropped, from 0 to 1.
        training: Whether dropout acts at all.
        seed: What the mask follows from: an int64 tensor of no dimensions on the
            device of `x`, or an integer; None draws one, without waiting for the
            device.
        generator: Draws the seed; None for torch's own of the device.
        eps: Added to the mean of the squares.
        offset: Added to the weight: 1.0 for weights around zero, as Gemma keeps them.
        cast: When the normalised row, which is float32, becomes the dtype of `x`:
            "input" before the weight (Llama), "float32" after it (Gemma).
        impl: "auto", or "triton", "compiled" or "reference".

    Returns:
        The normalised sum, and the sum, each of the shape and dtype of `x`.

    Raises:
        ShapeError: The shapes do not fit each other.
        DtypeError: A dtype is not floating-point, or they do not fit each other.
        OptionError: `p` is not from 0 to 1, or both `seed` and `generator` are given.
        ImplementationError: The implementation asked for cannot take this call.

    Example:
        >>> x, residual = torch.ones(1, 4), torch.zeros(1, 4)
        >>> normed, total = dropout_add_rms_norm(x, residual, p=0.5, seed=7)
        >>> total
        tensor([[2., 2., 0., 0.]])
    """
    norm: dict[str, Any] = {"eps": eps, "offset": offset, "cast": cast}
    found = facts(x, residual, weight, p=p, seed=seed, generator=generator, **norm)
    if not training or p == 0:
        # Without a mask it is another op, which has implementations of the same names.
        return _add_rms_norm.add_rms_norm(x, residual, weight, **norm, impl=impl)
    key = _seed_tensor(seed, generator, x.device)
    return OP.run(  # type: ignore[no-any-return]
        found, impl, x, residual, weight, key, p, eps, offset, cast
    )


def facts(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    p: float = 0.1,
    training: bool = True,
    seed: Tensor | int | None = None,
    generator: Generator | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    cast: str = "input",
) -> NormFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        x: See `dropout_add_rms_norm`.
        residual: Likewise.
        weight: Likewise.
        p: Likewise.
        training: Likewise.
        seed: Likewise.
        generator: Likewise.
        eps: Likewise.
        offset: Likewise.
        cast: Likewise.
    """
    del training
    check_number(_OP, "p", p)
    if not 0.0 <= p <= 1.0:
        message = f"{_OP}: p must be from 0 to 1, got {p}"
        raise OptionError(message)
    if seed is not None and generator is not None:
        message = f"{_OP}: give a seed or a generator, got both"
        raise OptionError(message)
    if seed is not None and not isinstance(seed, torch.Tensor):
        check_whole(_OP, "seed", seed)
        if not -(2**63) <= seed < 2**63:
            message = f"{_OP}: seed must fit into 64 bits, got {seed}"
            raise OptionError(message)
    if isinstance(seed, torch.Tensor):
        check_integer(_OP, "seed", seed)
        check_shape(_OP, "seed", seed, ())
        if seed.device != x.device:
            message = (
                f"{_OP}: seed must be on the device of x, {x.device}, got "
                f"{seed.device}; move it"
            )
            raise DeviceError(message)
    check_floating(_OP, "residual", residual)
    norm: dict[str, Any] = {"eps": eps, "offset": offset, "cast": cast}
    return norm_facts(_OP, x, residual=residual, weight=weight, **norm)


def _seed_tensor(
    seed: Tensor | int | None, generator: Generator | None, device: torch.device
) -> Tensor:
    if isinstance(seed, torch.Tensor):
        return seed.to(torch.int64)
    if seed is not None:
        return torch.full((), seed, dtype=torch.int64, device=device)
    return torch.randint(2**63 - 1, (), device=device, generator=generator)


def _reference(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    weight, seed, p, *norm = rest
    num_columns = x.shape[-1]
    num_rows = x.shape[:-1].numel()
    keep = keep_mask(seed, num_rows, num_columns, p).view(x.shape)
    keep = replicated_beside(x, keep)
    wide = x.to(accumulation_dtype(x.dtype))
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    total = (torch.where(keep, wide * scale, 0.0) + residual).to(x.dtype)
    return _rms_norm.by_formula(total, weight, *norm), total


def _triton(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    weight, seed, p, *norm = rest
    named = dict(zip(("eps", "offset", "cast"), norm, strict=True))
    return run_triton(x, residual, weight, seed=seed, p=float(p), **named)


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    x, r, w = (torch.randn(s, device=device, dtype=dtype) for s in ((6, 40),) * 3)
    return (x, r, w[0]), {"seed": 5}


OP = Op(
    name=_OP,
    implementations=(
        triton_form(
            _triton,
            refuse=triton_refuses,
            because="one pass over the rows each way, and no mask is kept",
        ),
        compiled_form(_reference),
        reference_form(_reference),
    ),
    facts=facts,
    example=_example,
)
