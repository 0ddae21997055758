"""Gradient bucket: the gradients of some parameters, in one buffer that travels whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class GradientBucket:
    """Gradients of one dtype and device that travel together, in one buffer.

    The buffer is made anew for each step: who keeps a sum of the step before keeps it.
    Complex gradients travel as pairs of real numbers.

    Args:
        parameters: In the order in which their gradients lie there, by their places among
            all parameters.

    Attributes:
        places: Of the parameters.
        device: Where the gradients are.
        missing: The places that the last pass of a step has not reached yet.
        pieces: The buffer, as it is divided: the gradients, and numbers behind them; later
            the sums of both. Nothing before they are sent.
        is_stale: Whether what was sent is not what the parameters have now.
    """

    def __init__(self, parameters: dict[int, Tensor]) -> None:
        self._parameters = parameters
        self.places = [*parameters]
        self._dtype, self.device = _kind(parameters[self.places[0]])
        self.begin()

    def begin(self) -> None:
        """Forgets the buffer of the step before."""
        self.missing = set(self.places)
        self.pieces: Sequence[Tensor] = ()
        self.is_stale = False

    def fill(self, told: Sequence[float] = ()) -> Tensor:
        """Copies the gradients to a new buffer, and returns it as real numbers.

        Args:
            told: What travels behind them.
        """
        parts = [_as_it_travels(one, self._dtype) for one in self._parameters.values()]
        # Behind even the only gradient of a bucket: a single tensor would not be copied.
        parts.append(torch.tensor(told, dtype=self._dtype, device=self.device))
        buffer: Tensor = _flatten_dense_tensors(parts)  # type: ignore[no-untyped-call]
        self.pieces, self.is_stale = _unflatten_dense_tensors(buffer, parts), False  # type: ignore[no-untyped-call]
        return torch.view_as_real(buffer) if buffer.is_complex() else buffer

    def told(self) -> list[float]:
        """Returns the sums of what has travelled behind the gradients."""
        told = self.pieces[-1]
        found: list[float] = (told.real if told.is_complex() else told).tolist()
        return found

    def sums(self) -> list[Tensor]:
        """Returns the sums of the gradients."""
        return [*map(_like, self._parameters.values(), self.pieces)]


def _as_it_travels(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the gradient of a parameter, dense, and of this rank; zeros for none."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(_local(parameter), dtype=dtype)
    if isinstance(gradient, DTensor):
        gradient = as_placed(gradient, parameter).to_local()
    dense = gradient if gradient.layout == torch.strided else gradient.to_dense()
    return dense if dense.dtype == dtype else dense.to(dtype)


def as_placed(gradient: DTensor, parameter: Tensor) -> DTensor:
    """Returns a gradient that lies among ranks as its parameter does."""
    assert isinstance(parameter, DTensor)
    if gradient.placements == parameter.placements:
        return gradient
    # A sum of which each rank has a part, as a rule.
    return gradient.redistribute(placements=parameter.placements)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _kind(parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    """Returns what the gradient of a parameter is."""
    return parameter.grad_dtype or parameter.dtype, _local(parameter).device


def _like(parameter: Tensor, local: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return local
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(local, mesh, placements, shape=shape, stride=stride)


def in_buckets(parameters: Sequence[Tensor], most_bytes: int) -> list[GradientBucket]:
    """Returns buckets of neighbours of one dtype and device, together not too large.

    Backward reaches the last parameters first, and so the first bucket has those.
    """
    found: list[dict[int, Tensor]] = []
    size, last = 0, None
    for at, one in reversed([*enumerate(parameters)]):
        kind = _kind(one)
        if kind != last or size >= most_bytes:
            found.append({})
            size, last = 0, kind
        found[-1][at] = one
        size += _local(one).numel() * kind[0].itemsize
    return [*map(GradientBucket, found)]
