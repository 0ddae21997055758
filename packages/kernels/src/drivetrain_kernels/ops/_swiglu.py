"""SwiGLU: h = silu(gate) * up, silu(g) = g / (1 + e^-g).

Shazeer, GLU Variants Improve Transformer, 2020, equation 5:
https://arxiv.org/abs/2002.05202.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels.ops._gated import GatedFacts, gated_facts, gated_op

if TYPE_CHECKING:
    from torch import Tensor


def swiglu(gate: Tensor, up: Tensor, *, impl: str = "auto") -> Tensor:
    """Returns `silu(gate) * up`.

    Args:
        gate: Any shape; a slice of a wider tensor is read where it lies.
        up: Of the same shape and dtype.
        impl: "auto", or "triton", "compiled", "torch" or "reference".

    Returns:
        A tensor of the shape and dtype of `gate`.

    Raises:
        ShapeError: The shapes differ.
        DtypeError: A dtype is not floating-point, or they differ.
        ImplementationError: The implementation asked for cannot take this call.

    Example:
        >>> import torch
        >>> swiglu(torch.tensor([0.0, 1.0]), torch.tensor([5.0, 2.0]))
        tensor([0.0000, 1.4621])
    """
    return OP.run(facts(gate, up), impl, gate, up)  # type: ignore[no-any-return]


def facts(gate: Tensor, up: Tensor) -> GatedFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        gate: See `swiglu`.
        up: Likewise.
    """
    return gated_facts("swiglu", gate, up)


def _reference(gate: Tensor, up: Tensor) -> Tensor:
    wide = accumulation_dtype(gate.dtype)
    return (functional.silu(gate.to(wide)) * up.to(wide)).to(gate.dtype)


def _torch(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


OP = gated_op("swiglu", facts=facts, reference=_reference, by_torch=_torch)
