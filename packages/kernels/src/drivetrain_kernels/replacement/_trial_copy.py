"""A copy of a module to try things on, which the module does not notice."""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

from torch import nn

_COLLECTIONS = (list, dict, set, bytearray)
_HOOKS = frozenset(
    name
    for name, value in vars(nn.Module()).items()
    if "hook" in name and isinstance(value, dict)
)


def trial_copy(module: nn.Module) -> nn.Module:
    """Returns a module that computes the same, has no hooks, and shares parameters.

    What a call writes to attributes, to lists and dictionaries in them, or to buffers
    stays in the copy. Other objects are shared.

    Args:
        module: Any module.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> trial = trial_copy(norm)
        >>> trial.weight is norm.weight, trial.running_mean is norm.running_mean
        (True, False)
    """
    return _copy(module, {})


def _copy(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    if id(module) in made:
        return made[id(module)]
    found = type(module).__new__(type(module))
    made[id(module)] = found
    for name, value in vars(module).items():
        found.__dict__[name] = _attribute(name, value, module, found)
    found._parameters = dict(module._parameters)
    found._buffers = {
        name: None if buffer is None else buffer.detach().clone()
        for name, buffer in module._buffers.items()
    }
    found._modules = {
        name: None if part is None else _copy(part, made)
        for name, part in module._modules.items()
    }
    return found


def _attribute(name: str, value: Any, module: nn.Module, found: nn.Module) -> Any:
    if name in _HOOKS:
        return type(value)()
    if isinstance(value, MethodType) and value.__self__ is module:
        return MethodType(value.__func__, found)
    return copy.copy(value) if type(value) in _COLLECTIONS else value
