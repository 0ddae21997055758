"""Proof that a stand-in computes the formula of a module, and rounds no worse."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drivetrain_core.accelerators import isolated_rng
from drivetrain_kernels.replacement._check import call_with, random_values
from drivetrain_kernels.replacement._formula import (
    EXACT_ROWS,
    ROUNDED_ROWS,
    Formula,
    relative,
    rows_of,
)
from drivetrain_kernels.replacement._trial_copy import trial_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ROUNDING = 2.0
# In units of the dtype's rounding: of a result that the module has exactly by chance.
_FLOOR = 0.25
_FEW_COLUMNS = 32


class Proof:
    """What a module computes, against what might stand in for it.

    Args:
        module: The module as it is.
        width: The size of the input's last dimension.

    Attributes:
        why: Why the module has no formula, or nothing.
        width: The size of the last dimension that it is tried with, in few columns if
            the module can.
        shapes: Of the parameters and buffers then, by name.
    """

    def __init__(self, module: nn.Module, width: int) -> None:
        """Traces the module's forward, in training and in evaluation."""
        first = next(module.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._module = trial_copy(module)
        named = [*module.named_parameters(), *module.named_buffers()]
        shapes = {name: tuple(value.shape) for name, value in named}
        self._trace(*_with_few_columns(shapes, width))
        if self.why and self.width != width:
            # It may know its sizes by number.
            self._trace(shapes, width)

    def _trace(self, shapes: Mapping[str, tuple[int, ...]], width: int) -> None:
        self.width, self.shapes = width, shapes
        generator = torch.Generator().manual_seed(width)
        self._parameters = {
            name: random_values(shape, self._device, torch.float64, generator).detach()
            for name, shape in shapes.items()
        }
        x = torch.zeros(2, 3, width, dtype=self._dtype, device=self._device)
        self._formulas = []
        for training in (True, False):
            self._module.train(training)
            with isolated_rng(0), torch.autocast(self._device.type, enabled=False):
                self._formulas.append(Formula(self._module, self._narrow(), x))
        self.why = next((one.why for one in self._formulas if one.why), "")

    @property
    def alike(self) -> float:
        """The largest relative difference, in float64, of two forms of one formula.

        What a module computes in a narrower dtype has its constants in float32.
        """
        wide = self._dtype == torch.float64
        return 1e-9 if wide else torch.finfo(torch.float32).eps

    def error(self, standin: Callable[..., Any]) -> float:
        """Returns how far a stand-in is from the formula in float64, relative."""
        worst = 0.0
        for x in self._rows(EXACT_ROWS):
            found = call_with(self._module, standin, self._parameters, x)
            exact = (formula(self._parameters, x) for formula in self._formulas)
            worst = max(worst, *(relative(one, found) for one in exact))
        return worst

    def rounds_worse(self, standin: Callable[..., Any]) -> str:
        """Says where a stand-in rounds worse than twice the module, or nothing."""
        parameters = self._narrow()
        wide = {name: value.double() for name, value in parameters.items()}
        self._module.train(False)
        for x in self._rows(ROUNDED_ROWS):
            narrow = x.to(self._dtype)
            exact = self._formulas[-1](wide, narrow.double())
            own = relative(exact, call_with(self._module, None, parameters, narrow))
            ours = relative(exact, call_with(self._module, standin, parameters, narrow))
            bound = _ROUNDING * max(own, _FLOOR * torch.finfo(self._dtype).eps)
            if math.isfinite(own) and not ours <= bound:
                return f"rounds to {ours:.1e}, where the module rounds to {own:.1e}"
        return ""

    def _narrow(self) -> dict[str, Tensor]:
        return {name: p.to(self._dtype) for name, p in self._parameters.items()}

    def _rows(self, kinds: Sequence[tuple[float, float]]) -> list[Tensor]:
        return [x.to(self._device) for x in rows_of(self.width, kinds)]


def _with_few_columns(
    shapes: Mapping[str, tuple[int, ...]], width: int
) -> tuple[dict[str, tuple[int, ...]], int]:
    """Returns shapes and a width in the same proportions, with few columns.

    What a feed-forward computes shows in few; those of a norm cost little, and count.

    Example:
        >>> _with_few_columns({"up": (14336, 4096)}, 4096)
        ({'up': (112, 32)}, 32)
        >>> _with_few_columns({"weight": (4096,)}, 4096)
        ({'weight': (4096,)}, 4096)
    """
    if all(len(shape) < 2 for shape in shapes.values()):
        return dict(shapes), width
    unit = math.gcd(width, *(size for shape in shapes.values() for size in shape))
    kept = min(unit, -(-_FEW_COLUMNS // (width // unit)))
    few = {
        name: tuple(size // unit * kept for size in shape)
        for name, shape in shapes.items()
    }
    return few, width // unit * kept
