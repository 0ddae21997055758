"""Hooks of parameters, which see the gradient of one part of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

# Those of torch and of these packages are made for it.
_MADE_FOR_IT = ("torch.", "drivetrain_")


def is_linear(hook: Callable[[Tensor], Tensor | None], parameter: Tensor) -> bool:
    """Returns whether a hook doubles where the gradient does: its sum over parts is right.

    A hook that clips, or adds noise, does not; one that scales, or leaves rows out, does.

    Args:
        hook: As `register_hook` takes it.
        parameter: Of which it is.

    Example:
        >>> from functools import partial
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> is_linear(partial(torch.mul, other=0.1), weight)
        True
        >>> is_linear(partial(torch.clamp, min=-1.0, max=1.0), weight)
        False
    """
    is_known = str(getattr(hook, "__module__", "")).startswith(_MADE_FOR_IT)
    if is_known or isinstance(parameter, DTensor):
        return True
    probe = torch.arange(1.0, parameter.numel() + 1).to(parameter).view(parameter.shape)
    probe /= max(1, parameter.numel())

    def hooked(size: float) -> Tensor:
        gradient = probe * size
        found = hook(gradient)
        return gradient if found is None else found

    sizes = (2.0**-20, 1.0, 2.0**10)
    return all(torch.equal(hooked(2 * size), 2 * hooked(size)) for size in sizes)


class GradientContents:
    """Finds what changes gradients in the parts of a step, and counts no version.

    That are hooks of the nodes that accumulate them, hooks that run after that, and writes
    by way of `.data` or NumPy. Each pass is followed by one that reads its gradients.

    Args:
        parameters: Whose gradients, while there are none.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> contents = GradientContents([weight])
        >>> weight.sum().backward()
        >>> contents.take(0, weight.grad)
        >>> contents.has_changed([weight.grad])
        False
        >>> weight.grad.data.clamp_(max=0.5)
        tensor([0.5000, 0.5000])
        >>> contents.has_changed([weight.grad])
        True
        >>> contents.close()
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        # By place: what comes to a parameter without a gradient, and what a pass has left.
        self._coming: dict[int, int | None] = {}
        self._left: dict[int, tuple[Tensor, int | None]] = {}
        self._has_changed = False
        self._handles = [
            one.register_hook(self._look(at, one))  # type: ignore[no-untyped-call]
            for at, one in enumerate(parameters)
        ]

    def _look(self, at: int, parameter: Tensor) -> Callable[[Tensor], None]:
        # No partial function: it says by its module whose it is.
        def look(gradient: Tensor) -> None:
            self._coming.pop(at, None)
            if parameter.grad is None:
                self._coming[at] = sum_of_bits(gradient)
            self._compare(at, parameter.grad)

        return look

    def take(self, at: int, gradient: Tensor) -> None:
        """Notes what a pass has left."""
        found = sum_of_bits(gradient)
        self._has_changed |= self._coming.pop(at, found) != found
        self._left[at] = gradient, found

    def _compare(self, at: int, gradient: Tensor | None) -> None:
        left = self._left.get(at)
        if left is not None and left[0] is gradient:
            self._has_changed |= left[1] != sum_of_bits(gradient)

    def has_changed(self, gradients: Sequence[Tensor | None]) -> bool:
        """Returns whether one of them is not what passes have made of it."""
        for at, gradient in enumerate(gradients):
            self._compare(at, gradient)
        return self._has_changed

    def close(self) -> None:
        """Leaves the parameters alone."""
        for handle in self._handles:
            handle.remove()


def sum_of_bits(tensor: Tensor) -> int | None:
    """Returns a number that differs, as a rule, where tensors do; None for a DTensor.

    Args:
        tensor: Dense or sparse, of any dtype.
    """
    if isinstance(tensor, DTensor):
        return None
    values = tensor.detach()
    values = values._values() if values.layout == torch.sparse_coo else values
    values = torch.view_as_real(values) if values.is_complex() else values
    integer: torch.dtype = getattr(torch, f"int{8 * values.element_size()}")
    return int(values.contiguous().view(integer).sum())
