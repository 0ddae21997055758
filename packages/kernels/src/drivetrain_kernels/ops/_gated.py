"""Facts, Triton kernel and table of implementations that the gated activations share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from drivetrain_kernels._available import triton_missing
from drivetrain_kernels._check import (
    check_floating,
    check_like,
    check_shape,
    is_distributed,
)
from drivetrain_kernels._compiled import compiled_form
from drivetrain_kernels._dispatch import (
    Example,
    Implementation,
    Op,
    reference_form,
    triton_form,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedFacts:
    """What the choice of a gated activation's implementation depends on.

    Args:
        device: The type of the device.
        dtype: That of both tensors.
        distributed: Whether they are DTensors.
    """

    device: str
    dtype: torch.dtype
    distributed: bool = False


def gated_facts(op: str, gate: Tensor, up: Tensor) -> GatedFacts:
    """Checks the arguments of a gated activation and returns its facts.

    Args:
        op: The op's name.
        gate: What the activation acts on.
        up: What it is multiplied with.

    Raises:
        ShapeError: The shapes differ.
        DtypeError: A dtype is not floating-point, or they differ.
        DeviceError: The devices differ.
    """
    check_floating(op, "gate", gate)
    check_floating(op, "up", up)
    check_like(op, ("gate", gate), ("up", up))
    check_shape(op, "up", up, gate.shape)
    return GatedFacts(
        device=gate.device.type,
        dtype=gate.dtype,
        distributed=is_distributed(gate, up),
    )


def gated_op(
    name: str,
    *,
    facts: Callable[..., GatedFacts],
    reference: Callable[..., Tensor],
    by_torch: Callable[..., Tensor],
) -> Op[GatedFacts]:
    """Returns the table of a gated activation.

    Args:
        name: The public function's name.
        facts: Checks a call and returns its facts.
        reference: Computes in the wide dtype.
        by_torch: Computes in the dtype of the tensors.
    """
    return Op(
        name=name,
        implementations=(
            triton_form(
                _triton,
                refuse=triton_refuses,
                because="one pass each way, and only gate and up are kept",
            ),
            compiled_form(reference),
            Implementation(
                name="torch",
                call=by_torch,
                because="torch's operators in the dtype of the tensors, without a copy",
            ),
            reference_form(reference),
        ),
        facts=facts,
        example=gated_example,
    )


def _triton(gate: Tensor, up: Tensor, kind: str = "silu") -> Tensor:
    # Triton is an extra, which only those need who run its kernels.
    from drivetrain_kernels.ops import _triton_gated

    out: Tensor = _triton_gated.gated(gate, up, kind)
    return out


def triton_refuses(facts: GatedFacts) -> str | None:
    """Says why the Triton kernels cannot take a call, or None if they can.

    Args:
        facts: Those of the call.
    """
    if facts.distributed:
        return "takes no DTensor"
    return triton_missing(facts.device)


def gated_example(device: torch.device, dtype: torch.dtype) -> Example:
    """Returns small arguments of a gated activation.

    Args:
        device: Where they lie.
        dtype: That of both tensors.
    """
    gate, up = (torch.randn(6, 40, device=device, dtype=dtype) for _ in range(2))
    return (gate, up), {}
