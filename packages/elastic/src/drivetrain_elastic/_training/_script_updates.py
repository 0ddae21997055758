"""Updates that a script makes itself, by calling its optimizer within a step."""

from __future__ import annotations

import inspect
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch.optim.optimizer import register_optimizer_step_pre_hook

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
        is_alone: Whether no other rank joins: then other optimizers do no harm.

    Attributes:
        has_called: Whether the script has called it in the step in hand.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        update: Callable[[Tensor | None, bool | None], None],
        *,
        is_alone: bool = True,
    ) -> None:
        self._optimizers = optimizers
        self._update = update
        self._is_alone = is_alone
        self._own: list[dict[str, Any]] = []
        self._watches: list[Any] = []
        # In which step each optimizer that is not the loop's was used.
        self._used: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._num_begun = 0
        self.has_called = False
        # As in all steps before; None before the first.
        self._calls: bool | None = None

    def begin(self) -> None:
        """Takes calls from now on, until `end`."""
        self.has_called = False
        self._num_begun += 1
        self._stand_in()

    def _stand_in(self) -> None:
        if not self._is_alone:
            look = partial(self._look, get_ident())
            self._watches.append(register_optimizer_step_pre_hook(look))
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
        while self._watches:
            self._watches.pop().remove()
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
        self._stand_in()
        self.has_called = True

    def _look(self, thread: int, optimizer: Optimizer, *_: object) -> None:
        """Refuses optimizers whose gradients are those of this rank alone.

        One that a step has made for itself, as an inner loop does, is its own affair.
        """
        if get_ident() != thread or any(one is optimizer for one in self._optimizers):
            return
        own, others = (
            {id(one) for it in those for g in it.param_groups for one in g["params"]}
            for those in (self._optimizers, [optimizer])
        )
        first = self._used.setdefault(optimizer, self._num_begun)
        if first != self._num_begun or not own.isdisjoint(others):
            refuse("foreign", kind=type(optimizer).__name__)

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
