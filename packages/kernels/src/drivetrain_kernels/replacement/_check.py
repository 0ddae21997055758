"""Runs a stand-in beside the module that it is to replace, on random input.

The module runs through `torch.func.functional_call` with random parameters: a weight
of ones would hide where it enters, and the module's own tensors are not touched.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drivetrain_core.accelerators import isolated_rng
from drivetrain_kernels.replacement._formula import relative
from drivetrain_kernels.replacement._trial_copy import trial_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
"""The largest relative error, forward and backward, of a stand-in, by dtype."""

_ROWS = (2, 3)
# Clamps and small epsilons show at some magnitudes only, what depends on the length of
# a sequence at some lengths, and which dimension is meant at some numbers of them.
_INPUTS = (
    *((_ROWS, 1.0), ((1, 7), 30.0), ((3, 2), 0.01)),
    *(((5,), 1.0), ((2, 2, 3), 1.0)),
)


def disagreement(
    module: nn.Module,
    standin: Callable[..., Any],
    width: int,
    dtype: torch.dtype,
    shapes: Mapping[str, tuple[int, ...]],
) -> float:
    """Returns the largest relative difference of output and gradients.

    Args:
        module: The module as it is.
        standin: What would be bound to it.
        width: The size of the input's last dimension.
        dtype: Of parameters and input.
        shapes: Of the parameters, by name; they fit the width.

    Returns:
        The largest norm of a difference over the norm; infinite where shapes or dtypes
        differ.
    """
    first = next(module.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    module, worst = trial_copy(module), 0.0
    generator = torch.Generator().manual_seed(width)
    inputs = [
        sample_input(width, device, dtype, generator, rows) * scale
        for rows, scale in _INPUTS
    ]
    parameters = {
        name: random_values(shape, device, dtype, generator)
        for name, shape in shapes.items()
    }
    # A module in evaluation would hide its dropout.
    for training, x in itertools.product((True, False), inputs):
        module.train(training)
        try:
            plain = _run(module, parameters, x, None)
        except Exception:
            if x.ndim == 1 + len(_ROWS):
                raise
            continue  # It takes no other number of dimensions.
        ours = _run(module, parameters, x, standin)
        for one, other in zip(plain, ours, strict=True):
            alike = one.dtype == other.dtype
            worst = max(worst, relative(one, other) if alike else math.inf)
    return worst


def sample_input(
    width: int,
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
    rows: Sequence[int] = _ROWS,
) -> Tensor:
    """Returns a random input of a few rows.

    Args:
        width: The size of its last dimension.
        device: Where to.
        dtype: Of what dtype.
        generator: What draws it; None for the same values at each call.
        rows: Its dimensions before the last one.
    """
    generator = generator or torch.Generator().manual_seed(0)
    return torch.randn(*rows, width, generator=generator).to(device, dtype)


def random_values(
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> Tensor:
    """Returns random values for a parameter, so that products keep their size.

    Args:
        shape: Of the parameter.
        device: Where to.
        dtype: Of what dtype.
        generator: What draws them.
    """
    scale = 1.0 if len(shape) < 2 else shape[-1] ** -0.5
    values = torch.randn(shape, generator=generator) * scale
    return values.to(device, dtype).requires_grad_()


def _run(
    module: nn.Module,
    parameters: dict[str, Tensor],
    x: Tensor,
    standin: Callable[..., Any] | None,
) -> list[Tensor]:
    """Returns the output, and the gradients of input and parameters."""
    leaves = [x.detach().clone().requires_grad_(), *parameters.values()]
    with torch.enable_grad():
        out = call_with(module, standin, parameters, leaves[0])
        weights = torch.arange(out.numel(), device=out.device).cos().view(out.shape)
        loss = (out.double() * weights).sum()
        grads: Sequence[Tensor | None] = torch.autograd.grad(
            loss, leaves, allow_unused=True
        )
    zeros = [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(leaves, grads, strict=True)
    ]
    return [out.detach(), *zeros]


def call_with(
    module: nn.Module,
    standin: Callable[..., Any] | None,
    parameters: Mapping[str, Tensor],
    x: Tensor,
) -> Tensor:
    """Returns the output of a module, or of its stand-in, with other parameters.

    Args:
        module: The module.
        standin: What would be bound to it; None for its own forward.
        parameters: By name.
        x: The input.
    """
    named = {f"module.{name}": value for name, value in parameters.items()}
    with isolated_rng(0), torch.autocast(x.device.type, enabled=False):
        out: Tensor = torch.func.functional_call(_Caller(module, standin), named, (x,))
    return out


class _Caller(nn.Module):
    """Calls the plain `forward` of a module, or its stand-in."""

    def __init__(self, module: nn.Module, standin: Callable[..., Any] | None) -> None:
        super().__init__()
        self.module = module
        self.standin = standin

    def forward(self, x: Tensor) -> Any:
        if self.standin is None:
            return self.module.forward(x)
        return self.standin(self.module, x)
