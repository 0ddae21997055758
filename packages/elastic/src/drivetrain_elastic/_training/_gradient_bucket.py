"""Gradient bucket: the gradients of some parameters, in one buffer that travels whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class GradientBucket:
    """Gradients of one dtype and device that travel together, in one buffer.

    Complex gradients lie there as pairs of real numbers.

    Args:
        parameters: In the order in which they lie there.
        num_flags: How many more numbers travel behind them.

    Attributes:
        buffer: The gradients, flat; later their sums.
        flags: The numbers behind them.
        views: By parameter, its gradient in the buffer.
        missing: The parameters that the last pass of a step has not reached yet.
        wire: What of it is on its way to the other ranks; None before.
        is_torn: Whether gradients were changed between two passes.
    """

    def __init__(self, parameters: Sequence[Tensor], num_flags: int = 0) -> None:
        self.parameters = parameters
        dtype, device = _local(parameters[0]).dtype, _local(parameters[0]).device
        width = 2 if dtype.is_complex else 1
        num = width * sum(_local(one).numel() for one in parameters)
        self.buffer = torch.zeros(num + num_flags, dtype=dtype.to_real(), device=device)
        self.flags = self.buffer[num:]
        self.views: dict[Tensor, Tensor] = {}
        at = 0
        for one in parameters:
            end = at + width * _local(one).numel()
            view = self.buffer[at:end].view(dtype).view(_local(one).shape)
            self.views[one] = _like(one, view)
            at = end
        # DTensors count their versions themselves, and not as their parts do.
        self._wrapped = [one for one in self.views.values() if isinstance(one, DTensor)]
        self.begin()

    def begin(self) -> None:
        """Leaves the buffer to the passes of a step."""
        self.missing: set[Tensor] = set(self.parameters)
        self.wire: Tensor | None = None
        self.is_torn = False
        self._noted = self._version()

    def _version(self) -> int:
        return self.buffer._version + sum(one._version for one in self._wrapped)

    @property
    def is_touched(self) -> bool:
        """Whether anything but a pass has written here."""
        return self.is_torn or self._version() != self._noted

    def take(self, parameter: Tensor) -> None:
        """Takes what a pass has added to the gradient of a parameter."""
        view, gradient = self.views[parameter], parameter.grad
        # A pass that adds to the view writes to it once.
        num_writes = self._version() - self._noted - (gradient is view)
        self.is_torn |= num_writes > 0 and not self._wrapped
        if gradient is not view:
            assert gradient is not None
            _local(view).copy_(_local(gradient))
            parameter.grad = view
        self._noted = self._version()
        self.missing.discard(parameter)

    def start(self) -> Tensor:
        """Returns a copy to be sent, while passes may still add to what is here."""
        self._sent = self._noted
        self.wire = self.buffer.clone()
        return self.wire

    @property
    def is_stale(self) -> bool:
        """Whether what was sent is not what is here now."""
        is_moved = any(one.grad is not view for one, view in self.views.items())
        return self.wire is not None and (is_moved or self._sent != self._noted)

    def fill(self) -> None:
        """Takes over gradients that lie elsewhere; zeros where there are none."""
        for one, view in self.views.items():
            if one.grad is None:
                _local(view).zero_()
            elif one.grad is not view:
                _local(view).copy_(_local(as_it_travels(one.grad, view)))
                one.grad = view


def as_it_travels(gradient: Tensor, view: Tensor) -> Tensor:
    """Returns a gradient in the form of its view in a bucket."""
    if isinstance(gradient, DTensor):
        assert isinstance(view, DTensor)
        if gradient.placements != view.placements:
            # A sum of which each rank has a part, as a rule.
            return gradient.redistribute(placements=view.placements)
        return gradient
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(parameter: Tensor, view: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return view
    return DTensor.from_local(
        view,
        parameter.device_mesh,
        parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def in_buckets(parameters: Sequence[Tensor], most_bytes: int) -> list[GradientBucket]:
    """Returns buckets of neighbours of one dtype and device, together not too large.

    Behind the last one travel what a reducer tells: two numbers, one for each bucket, and
    two for each parameter.
    """
    found: list[list[Tensor]] = []
    size, kind = 0, None
    for one in parameters:
        part = _local(one)
        if found and kind == (part.dtype, part.device) and size < most_bytes:
            found[-1].append(one)
        else:
            found.append([one])
            size, kind = 0, (part.dtype, part.device)
        size += part.nbytes
    last = GradientBucket(found[-1], 2 + len(found) + 2 * len(parameters))
    return [*map(GradientBucket, found[:-1]), last]
