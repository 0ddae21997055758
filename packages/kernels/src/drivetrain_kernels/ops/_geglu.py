"""GEGLU: h = gelu(gate) * up.

Shazeer, GLU Variants Improve Transformer, 2020, equation 5:
https://arxiv.org/abs/2002.05202.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._check import check_one_of
from drivetrain_kernels.ops._gated import GatedFacts, gated_facts, gated_op

if TYPE_CHECKING:
    from torch import Tensor


def geglu(
    gate: Tensor, up: Tensor, *, approximate: str = "tanh", impl: str = "auto"
) -> Tensor:
    """Returns `gelu(gate) * up`.

    Args:
        gate: Any shape; a slice of a wider tensor is read where it lies.
        up: Of the same shape and dtype.
        approximate: "tanh" for the usual approximation of GELU (Gemma), "none" for
            GELU itself.
        impl: "auto", or "triton", "compiled", "torch" or "reference".

    Returns:
        A tensor of the shape and dtype of `gate`.

    Raises:
        ShapeError: The shapes differ.
        DtypeError: A dtype is not floating-point, or they differ.
        OptionError: `approximate` is something else.
        ImplementationError: The implementation asked for cannot take this call.

    Example:
        >>> import torch
        >>> geglu(torch.tensor([0.0, 1.0]), torch.tensor([5.0, 2.0]))
        tensor([0.0000, 1.6824])
    """
    found = facts(gate, up, approximate=approximate)
    return OP.run(found, impl, gate, up, approximate)  # type: ignore[no-any-return]


def facts(gate: Tensor, up: Tensor, *, approximate: str = "tanh") -> GatedFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        gate: See `geglu`.
        up: Likewise.
        approximate: Likewise.
    """
    check_one_of("geglu", "approximate", approximate, ("tanh", "none"))
    return gated_facts("geglu", gate, up)


def _reference(gate: Tensor, up: Tensor, approximate: str) -> Tensor:
    wide = accumulation_dtype(gate.dtype)
    act = functional.gelu(gate.to(wide), approximate=approximate)
    return (act * up.to(wide)).to(gate.dtype)


def _torch(gate: Tensor, up: Tensor, approximate: str) -> Tensor:
    return functional.gelu(gate, approximate=approximate) * up


OP = gated_op("geglu", facts=facts, reference=_reference, by_torch=_torch)
