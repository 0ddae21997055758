"""Updates that a script makes itself, by calling its optimizer within a step."""

from __future__ import annotations

import inspect
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from drivetrain_elastic._training._refusals import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

# What stands for the optimizer's own while a step is in hand. The second makes a GradScaler
# call the first also where gradients overflow, and tell of that.
_STEP, _FLAG = "step", "_step_supports_amp_scaling"


class ScriptUpdates:
    """Takes calls of an optimizer's `step`, by the script or by its `GradScaler`.

    A script that has such calls has one in each step; otherwise the loop makes the update
    at the end of the step.

    Args:
        optimizers: Of the script.
        update: Makes the update of a step. Its arguments: by what a scaler has multiplied
            the gradients, None for nothing; whether they overflow, None without a scaler.

    Attributes:
        has_called: Whether the script has called it in the step in hand.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        update: Callable[[Tensor | None, bool | None], None],
    ) -> None:
        self._optimizers = optimizers
        self._update = update
        self._own: list[dict[str, Any]] = []
        self.has_called = False
        # As in all steps before; None before the first.
        self._calls: bool | None = None

    def begin(self) -> None:
        """Takes calls from now on, until `end`."""
        self.has_called = False
        for one in self._optimizers:
            own = vars(one)
            self._own.append(
                {name: own[name] for name in (_STEP, _FLAG) if name in own}
            )
            # It looks like the optimizer's own: schedules of learning rates ask for that.
            take = wraps(one.step)(partial(self._take, one))
            own.update({_STEP: take, _FLAG: True})

    def end(self) -> None:
        """Gives the optimizers back what is theirs."""
        for one, own in zip(self._optimizers, self._own, strict=False):
            for name in (_STEP, _FLAG):
                vars(one).pop(name, None)
            vars(one).update(own)
        self._own = []

    def _take(self, optimizer: Optimizer, closure: object = None) -> None:
        if self.has_called or self._calls is False or len(self._optimizers) > 1:
            refuse("calls")
        if closure is not None:
            refuse("closure", kind=type(optimizer).__name__)
        found: Any = getattr(optimizer, "found_inf", None)
        scale: Tensor | None = getattr(optimizer, "grad_scale", None)
        if found is not None:
            # It is done here what a fused optimizer would do.
            vars(optimizer).update(found_inf=None, grad_scale=None)
        self.end()
        self._update(scale, None if found is None else bool(found))
        self.begin()
        self.has_called = True

    def close_step(self) -> None:
        """Ends a step.

        Raises:
            ProgramError: The script has left its call away, for the first time.
        """
        if self._calls and not self.has_called:
            refuse("no_call")
        self._calls = self.has_called


def as_optimizers(optimizer: object) -> list[Optimizer]:
    """Returns the optimizers of a loop, of which there may be several.

    Raises:
        ProgramError: One of them is none, or cannot take a step without a closure.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> len(as_optimizers([torch.optim.SGD([weight]), torch.optim.Adam([weight])]))
        2
        >>> as_optimizers(torch.optim.LBFGS([weight]))
        Traceback (most recent call last):
          ...
        drivetrain_core._errors.ProgramError: LBFGS takes a closure, which computes the \
loss several times in a step: the loop computes it once; use an optimizer whose step() needs \
none
    """
    found: list[Any] = (
        list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    )
    for one in found:
        if not (hasattr(one, "param_groups") and hasattr(one, "step")):
            refuse("no_optimizer", kind=type(one).__name__)
        closure = inspect.signature(type(one).step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            refuse("closure", kind=type(one).__name__)
    return found
