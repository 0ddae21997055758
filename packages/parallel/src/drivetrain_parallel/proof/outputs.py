"""Comparison of a changed program with the program as written: loss and gradients.

A loss that agrees is not enough: a norm between two halves of a matrix may get a part of
its gradient while the loss has every digit right. So every gradient is compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

LOSS_TOLERANCE = 1e-5
"""How far a loss may be away, relative."""

GRADIENT_TOLERANCE = 1e-3
"""How far the gradient of a parameter may be away, relative to its norm."""

# Below the largest gradient times this and the tolerance, which is less than what single
# precision can tell apart, rounding is all that there is: the bias of an attention's keys
# has no gradient at all, for example.
_NOTHING = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """What a program computes on one batch.

    Args:
        loss: Its loss.
        gradients: Of each parameter, by name.
    """

    loss: float
    gradients: Mapping[str, Tensor]


def step_output(
    model: nn.Module, batch: Any, loss_of: Callable[[nn.Module, Any], Tensor]
) -> StepOutput:
    """Returns the loss and the gradients of a model, which has none afterwards.

    Args:
        model: The model.
        batch: What it is run on.
        loss_of: Returns its scalar loss.
    """
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return StepOutput(float(loss.detach()), gradients)


@dataclass(frozen=True, kw_only=True, slots=True)
class NumericalDifference:
    """How far one program is from another.

    Args:
        loss: Of the loss, relative.
        worst: The parameter whose gradient is furthest away.
        gradient: How far that is, relative to its norm.
        because: What is wrong; empty if nothing is.
    """

    loss: float
    worst: str = ""
    gradient: float = 0.0
    because: str = ""


def compare(expected: StepOutput, found: StepOutput) -> str:
    """Returns what is wrong, worst first; empty if nothing is.

    Args:
        expected: Of the program as written.
        found: Of the changed one.

    Example:
        >>> import torch
        >>> one = StepOutput(1.0, {"w": torch.ones(2)})
        >>> compare(one, StepOutput(1.0, {"w": torch.tensor([1.0, 1.5])}))
        'the gradient of w is off by 3.5e-01 of its norm'
    """
    return distance(expected, found).because


def distance(expected: StepOutput, found: StepOutput) -> NumericalDifference:
    """Returns how far a changed program is from the one as written.

    Args:
        expected: Of the program as written.
        found: Of the changed one.
    """
    loss = abs(found.loss - expected.loss) / max(abs(expected.loss), 1e-12)
    worst, gradient = _worst_gradient(expected.gradients, found.gradients)
    because = ""
    # A comparison with NaN is false, so the bounds are asked for, not their breach.
    if not loss <= LOSS_TOLERANCE:
        because = f"the loss is {found.loss:.7g} instead of {expected.loss:.7g}"
    elif (worst in expected.gradients) != (worst in found.gradients):
        because = f"{worst} has a gradient in one program and none in the other"
    elif not gradient <= GRADIENT_TOLERANCE:
        because = f"the gradient of {worst} is off by {gradient:.1e} of its norm"
    return NumericalDifference(
        loss=loss, worst=worst, gradient=gradient, because=because
    )


def _worst_gradient(
    expected: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> tuple[str, float]:
    norms = {name: float(g.float().norm()) for name, g in expected.items()}
    floor = _NOTHING * max(norms.values(), default=0.0)
    worst, furthest = "", 0.0
    for name in {**expected, **found}:
        away = math.inf
        if name in expected and name in found:
            one, other = expected[name], found[name]
            if one.shape == other.shape:
                gap = float((other.float() - one.float()).norm())
                away = gap / max(norms[name], floor, 1e-30)
        # One that is no number is as far away as one can be.
        away = math.inf if math.isnan(away) else away
        if away > furthest:
            worst, furthest = name, away
    return worst, furthest
