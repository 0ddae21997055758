"""Whether a changed program computes what the program as written does.

A loss that agrees is not enough: a norm between two halves of a matrix may get a part of
its gradient while the loss has every digit right. So every gradient is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

__all__ = ["GRADIENT_TOLERANCE", "LOSS_TOLERANCE", "Evidence", "compare", "evidence_of"]

LOSS_TOLERANCE = 1e-5
"""How far a loss may be away, relative."""

GRADIENT_TOLERANCE = 1e-3
"""How far the gradient of a parameter may be away, relative to its norm."""

# Below the largest gradient times this and the tolerance, which is less than what single
# precision can tell apart, rounding is all that there is: the bias of an attention's keys
# has no gradient at all, for example.
_NOTHING = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What a program computes on one batch.

    Args:
        loss: Its loss.
        gradients: Of each parameter, by name.
    """

    loss: float
    gradients: Mapping[str, Tensor]


def evidence_of(
    model: nn.Module, batch: Any, loss_of: Callable[[nn.Module, Any], Tensor]
) -> Evidence:
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
    return Evidence(float(loss.detach()), gradients)


def compare(expected: Evidence, found: Evidence) -> str:
    """Returns what is wrong, worst first; empty if nothing is.

    Args:
        expected: Of the program as written.
        found: Of the changed one.

    Example:
        >>> import torch
        >>> one = Evidence(1.0, {"w": torch.ones(2)})
        >>> compare(one, Evidence(1.0, {"w": torch.tensor([1.0, 1.5])}))
        "the gradient of 'w' is 35.4% away"
    """
    scale = max(abs(expected.loss), 1e-12)
    away = abs(found.loss - expected.loss) / scale
    if not away <= LOSS_TOLERANCE:
        return f"the loss is {found.loss:.7g} instead of {expected.loss:.7g}"
    missing = sorted(expected.gradients.keys() ^ found.gradients.keys())
    if missing:
        return f"{missing[0]!r} has a gradient in one program and none in the other"
    norms = {n: float(g.float().norm()) for n, g in expected.gradients.items()}
    floor = _NOTHING * max(norms.values(), default=0.0)
    worst, name = 0.0, ""
    for each, gradient in expected.gradients.items():
        other = found.gradients[each]
        if other.shape != gradient.shape:
            return f"the gradient of {each!r} is {list(other.shape)}"
        gap = float((other.float() - gradient.float()).norm())
        part = gap / max(norms[each], floor, 1e-30)
        if not part <= worst:
            worst, name = part, each
    if not worst <= GRADIENT_TOLERANCE:
        return f"the gradient of {name!r} is {worst:.1%} away"
    return ""
