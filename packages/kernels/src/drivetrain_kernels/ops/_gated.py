"""What the gated activations share: their facts, and the table that both fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_kernels._available import triton_missing
from drivetrain_kernels._check import (
    check_floating,
    check_like,
    check_shape,
    is_distributed,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "GatedFacts",
    "gated_example",
    "gated_facts",
    "only_on_a_gpu",
    "triton_refuses",
]


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


def triton_refuses(facts: GatedFacts) -> str | None:
    """Says why the Triton kernels cannot take a call, or None if they can.

    Args:
        facts: Those of the call.
    """
    if facts.distributed:
        return "takes no DTensor"
    return triton_missing(facts.device)


def only_on_a_gpu(facts: GatedFacts) -> str | None:
    """Says why "auto" does not take what is made for a GPU, or None on one.

    Args:
        facts: Those of the call.
    """
    if facts.device == "cuda":
        return None
    return f"is made for a GPU, the tensors are on {facts.device}"


def gated_example(
    device: torch.device, dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns small arguments of a gated activation.

    Args:
        device: Where they lie.
        dtype: That of both tensors.
    """
    gate, up = (torch.randn(6, 40, device=device, dtype=dtype) for _ in range(2))
    return (gate, up), {}
