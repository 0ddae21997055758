"""WSAM's options and counts, kept in the parameter groups of its base optimizer.

There they are shown, scheduled, saved and loaded like the base's own, also by tools
that know nothing of WSAM.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from drivetrain_optim._errors import (
    HyperparameterError,
    StateDictError,
    UnsupportedTensorError,
)
from drivetrain_optim.checks._options import WSAM_OPTIONS, checked
from drivetrain_optim.checks._tensor_checks import check_parameters, check_whole
from drivetrain_optim.wsam._pass import Group, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from torch import Tensor

_BASE, _STEP, _REUSES = "wsam_base", "wsam_step", "wsam_reuses_left"
_PER_GROUP = ("rho", "gamma")


class GroupOptions:
    """Reads, checks and counts in the groups of a base optimizer.

    `rho` and `gamma` stand under these names, if the base has no option called so, and
    may differ between groups; the others, as "wsam_...", are those of the first group.

    Args:
        base: The base optimizer; its groups get what they lack.
        options: All options of WSAM, by name.

    Raises:
        HyperparameterError: An option is not allowed.
        UnsupportedTensorError: A parameter is not supported.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> base = torch.optim.SGD([{"params": [weight], "rho": 0.2}], lr=0.1)
        >>> defaults = {name: rule.default for name, rule in WSAM_OPTIONS.items()}
        >>> options = GroupOptions(base, defaults)
        >>> base.param_groups[0]["rho"], base.param_groups[0]["gamma"]
        (0.2, 0.9)
        >>> options.shared("every_k"), options.step, options.second_pass_is_due
        (1, 0, True)
    """

    def __init__(self, base: Optimizer, options: Mapping[str, Any]) -> None:
        """Checks everything before it changes a group."""
        checked("WSAM", WSAM_OPTIONS, options)
        self._base = base
        self._keys: dict[str, str] = {
            name: name
            if name in _PER_GROUP and name not in base.defaults
            else f"wsam_{name}"
            for name in options
        }
        self.defaults: dict[str, Any] = {
            **{self._keys[name]: value for name, value in options.items()},
            _BASE: type(base).__name__,
            _STEP: 0,
            _REUSES: 0,
        }
        for index in range(len(base.param_groups)):
            self.check_group(index)
        self.adopt()

    @property
    def step(self) -> int:
        """The number of steps so far."""
        return int(self._first.get(_STEP, 0))

    @property
    def _reuses_left(self) -> int:
        return int(self._first.get(_REUSES, 0))

    @property
    def _first(self) -> dict[str, Any]:
        return self._base.param_groups[0]

    @property
    def second_pass_is_due(self) -> bool:
        """Whether the next step needs a second pass."""
        return self.weighs and self._reuses_left == 0

    @property
    def weighs(self) -> bool:
        """Whether sharpness has a weight in any group."""
        return any(self._of(group, "gamma") > 0 for group in self._base.param_groups)

    def shared(self, name: str) -> Any:
        """Returns an option that is the same for all groups."""
        return self._of(self._first, name)

    def count_step(self, *, full: bool) -> None:
        """Counts a step, of two passes if it is full."""
        reuses = self.shared("every_k") - 1 if full else max(0, self._reuses_left - 1)
        step = self.step + 1
        for group in self._base.param_groups:
            group[_STEP], group[_REUSES] = step, reuses

    def adopt(self) -> None:
        """Gives each group what it lacks, such as one added to the base itself."""
        shared = {**self.defaults, **self._first}
        shared |= {
            key: self.defaults[key] for key in (self._keys[name] for name in _PER_GROUP)
        }
        for group in self._base.param_groups:
            for key in self.defaults:
                group.setdefault(key, shared[key])

    def check_group(self, index: int) -> None:
        """Raises unless WSAM can step a group.

        Raises:
            HyperparameterError: An option is not allowed.
            UnsupportedTensorError: A parameter is not supported.
        """
        group = self._base.param_groups[index]
        given = {name: self._of(group, name) for name in self._keys}
        checked("WSAM", WSAM_OPTIONS, given)
        check_parameters("WSAM", index, group)
        if given["gamma"] > 0 or given["max_grad_norm"] is not None:
            check_whole("WSAM", index, group)
        if group.get("differentiable"):
            message = (
                "WSAM: the base must have differentiable=False, got True: its weights "
                "are moved and put back, which gradients cannot flow through"
            )
            raise HyperparameterError(message)
        if given["decouple"] and "lr" not in group:
            message = (
                "WSAM: decouple=True needs a learning rate in each group, got none in "
                f"group {index} of {type(self._base).__name__}; pass decouple=False"
            )
            raise HyperparameterError(message)
        sharded = any(hasattr(param, "device_mesh") for param in group["params"])
        if given["gradient"] == "local" and sharded:
            message = (
                "WSAM: gradient='local' needs parameters that every rank holds whole, "
                f"got DTensor parameters in group {index}; use gradient='global'"
            )
            raise UnsupportedTensorError(message)

    def check_saved(self, groups: Iterable[Mapping[str, Any]]) -> None:
        """Raises unless saved groups are those of WSAM on this kind of base.

        Raises:
            StateDictError: They are another optimizer's.
        """
        base = type(self._base).__name__
        for index, group in enumerate(groups):
            if group.get(_BASE) == base:
                continue  # An option that an older version lacked has its default.
            found = f"WSAM on {group[_BASE]}" if _BASE in group else "another optimizer"
            message = (
                f"WSAM: the state dict must be one of WSAM on {base}, but its parameter "
                f"group {index} is of {found}; load what {base} saved by itself into "
                "the base, before it is wrapped"
            )
            raise StateDictError(message)

    def plan(self, model: nn.Module | None) -> Plan:
        """Returns what the next step needs, checked again since schedules change it.

        Raises:
            HyperparameterError: An option is not allowed.
            UnsupportedTensorError: A parameter is not supported.
        """
        self.adopt()
        for index in range(len(self._base.param_groups)):
            self.check_group(index)
        ranks, num_ranks = self.ranks(model)
        return Plan(
            base=self._base,
            groups=[self._group(group) for group in self._base.param_groups],
            adaptive=self.shared("adaptive"),
            decouple=self.shared("decouple"),
            eps=self.shared("eps"),
            max_grad_norm=self.shared("max_grad_norm"),
            keeps_direction=self.shared("every_k") > 1,
            due=self._reuses_left == 0,
            step=self.step,
            averages=num_ranks > 1,
            process_group=ranks,
        )

    def ranks(self, model: nn.Module | None) -> tuple[dist.ProcessGroup | None, int]:
        """Returns the ranks that WSAM itself averages over, and how many they are."""
        distributed = dist.is_available() and dist.is_initialized()
        if not distributed or self.shared("gradient") != "local":
            return None, 1
        ranks: dist.ProcessGroup | None = None
        if isinstance(model, nn.parallel.DistributedDataParallel):
            ranks = model.process_group
        return ranks, dist.get_world_size(ranks)

    def no_sync(self, model: nn.Module | None) -> AbstractContextManager[object]:
        """Returns what the first of two passes of a closure runs under.

        Raises:
            HyperparameterError: Gradients must stay local, and the model cannot do so.
        """
        _, num_ranks = self.ranks(model)
        if num_ranks == 1 or not self.second_pass_is_due:
            return nullcontext()
        no_sync: Any = getattr(model, "no_sync", None)
        if no_sync is None:
            message = (
                "WSAM: gradient='local' with a closure needs a model with no_sync(), "
                f"such as DistributedDataParallel, got {type(model).__name__}; "
                "pass it as model=, or use perturb()"
            )
            raise HyperparameterError(message)
        context: AbstractContextManager[object] = no_sync()
        return context

    def _group(self, group: Mapping[str, Any]) -> Group:
        gamma = self._of(group, "gamma")
        weight = gamma / (1 - gamma)
        sign = -1 if group.get("maximize") else 1
        lr: Tensor | float = group.get("lr", 0.0)
        if isinstance(lr, torch.Tensor):
            # One on a device stays there, since reading it would wait.
            lr = lr.item() if lr.device.type == "cpu" else lr.reshape(())
        return Group(
            params=group["params"],
            rho=sign * self._of(group, "rho"),
            weight=weight,
            rate=lr * (sign * weight),
        )

    def _of(self, group: Mapping[str, Any], name: str) -> Any:
        key = self._keys[name]
        return group.get(key, self.defaults[key])


def check_base(base: object, *, wrapper: type[Optimizer]) -> None:
    """Raises unless an optimizer can be wrapped.

    Args:
        base: What is to be wrapped.
        wrapper: The class that wraps, which cannot be wrapped itself.

    Raises:
        HyperparameterError: It is no optimizer, or cannot step without a closure.
    """
    got = base.__name__ if isinstance(base, type) else type(base).__name__
    if not isinstance(base, Optimizer) or isinstance(base, wrapper):
        message = (
            f"WSAM: base must be another optimizer, already built, got {got}; pass for "
            "example torch.optim.AdamW(model.parameters())"
        )
        raise HyperparameterError(message)
    closure = inspect.signature(base.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        message = (
            f"WSAM: base must step from gradients alone, got {got}, whose step() "
            "needs a closure; choose another base"
        )
        raise HyperparameterError(message)


def check_model(model: object) -> None:
    """Raises unless a model is a module or None.

    Raises:
        HyperparameterError: It is something else.
    """
    if model is not None and not isinstance(model, nn.Module):
        got = type(model).__name__
        message = f"WSAM: model must be a torch.nn.Module or None, got {got}"
        raise HyperparameterError(message)
