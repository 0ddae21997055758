"""Checks the arguments of `accelerate` before anything is built or searched."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, get_args

import torch

from drivetrain_core._errors import Code, PlanError, ProgramError
from drivetrain_core._model.meta_model import Weights
from drivetrain_core._registry import find

if TYPE_CHECKING:
    from drivetrain_core._plan import Plan

_CHOICES = {"on_error": ("raise", "fallback"), "ship": ("auto", "pickle", "replay")}
_FUNCTIONS = {
    "loss": "(output, batch) to the loss",
    "forward": "(model, batch) to the output",
    "scheduler": "the optimizer to a scheduler",
}


def check_arguments(**given: Any) -> None:
    """Checks the arguments that can be checked without looking at the program.

    Raises:
        ProgramError: One of them has a wrong type or value; it is named.
    """
    for name, allowed in _CHOICES.items():
        if given[name] not in allowed:
            _refuse(f"{name} must be one of {', '.join(allowed)}", given[name])
    weights = given["weights"]
    if not callable(weights) and weights not in get_args(Weights):
        names = ", ".join(get_args(Weights))
        _refuse(f"weights must be one of {names}, or a function of a module", weights)
    for name, meaning in _FUNCTIONS.items():
        if given[name] is not None and not callable(given[name]):
            kind = type(given[name]).__name__
            message = f"{name} must be a function from {meaning}, got {kind}"
            raise ProgramError(message)
    for name in ("allow", "deny"):
        # The letters of a text would be taken for names.
        if isinstance(given[name], str) or not _is_names(given[name]):
            _refuse(f"{name} must be a list of names", given[name])
    require = given["require"]
    if isinstance(require, str | Mapping) or not isinstance(require, Collection):
        _refuse("require must be a list of names and (name, options) pairs", require)
    norm, seed, cache = (given[n] for n in ("max_grad_norm", "seed", "cache"))
    if norm is not None and not (_is_number(norm) and norm > 0):
        _refuse("max_grad_norm must be a positive number, or None", norm)
    if not isinstance(seed, int) or isinstance(seed, bool):
        _refuse("seed must be an integer", seed)
    if not isinstance(cache, bool | str | os.PathLike):
        _refuse("cache must be True, False, or a folder", cache)
    progress = given["progress"]
    if not isinstance(progress, bool) and not hasattr(progress, "finished"):
        _refuse("progress must be True, False, or a Progress", progress)
    if isinstance(given["data"], torch.Tensor):
        message = (
            "data must be an iterable of batches, and a tensor would give its rows; "
            "put it in a torch.utils.data.DataLoader, with a batch_size"
        )
        raise ProgramError(message)


def check_limits(plan: Plan, require: Collection[Any], deny: Collection[str]) -> None:
    """Checks a plan that was given against what is required and denied.

    Raises:
        PlanError: The plan lacks what is required, or has what is denied.
    """
    names = {choice.name for choice in plan.choices}
    for name in deny:
        find(name)
        if name in names:
            raise PlanError(
                Code.CONFLICT,
                name,
                because="the strategy holds it, and deny does as well",
                fix=f"drop {name} from one of them",
            )
    for entry in require:
        name = entry if isinstance(entry, str) else entry[0]
        optimization = find(name)
        wanted = None if isinstance(entry, str) else optimization.normalize(entry[1])
        held = [c for c in plan.choices if c.name == name]
        if not held or (wanted is not None and dict(held[0].config) != dict(wanted)):
            raise PlanError(
                Code.REQUIRES,
                name,
                because=f"it is required ({entry!r}), and the strategy does not hold it",
                fix="add it to the strategy, or drop it from require",
            )


def read_device(device: torch.device | str) -> torch.device:
    """Returns the device that a user named.

    Raises:
        ProgramError: There is no such device here.
    """
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        message = f"device must be like 'cpu' or 'cuda:0', got {device!r}"
        raise ProgramError(message) from error
    here = torch.accelerator.current_accelerator(check_available=True)
    if target.type not in {"cpu", here.type if here is not None else "cpu"}:
        there = f"'cpu' and {here.type!r}" if here is not None else "'cpu'"
        message = f"device {str(target)!r} cannot be used here; there is {there}"
        raise ProgramError(message)
    return target


def _refuse(rule: str, value: object) -> None:
    message = f"{rule}, got {value!r}"
    raise ProgramError(message)


def _is_names(names: object) -> bool:
    if names is None:
        return True
    return isinstance(names, Collection) and all(isinstance(n, str) for n in names)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
