"""What a module's forward reads beside tensors: attributes, globals, parts and their hooks."""

from __future__ import annotations

import dis
import gc
import sys
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

# What cannot change but by being exchanged, which shows.
_SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.device, Enum)
_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
_CONTAINERS = (Tensor, list, dict, set)
# Backward passes of one's own need not be linear in what comes back.
_OWN_BACKWARD = frozenset({"register_hook", "apply"})
# What a plain module has; `training` is checked in both states.
_USUAL = frozenset((*vars(nn.Module()), "forward"))
_Value = tuple[Any, str, str, Any]


@dataclass(frozen=True, slots=True)
class ForwardState:
    """What a forward reads, as it was when it was checked.

    Args:
        forward: The function of its class.
        values: Each as (the module of Python whose global it is, or None for an attribute;
            name, name within an object that it is in, or empty; value).
        parts: Modules that a stand-in does not call: each as (name, its class, and its
            own state).
        unseen: The name of something that may change without a sign, or empty.
    """

    forward: Any
    values: tuple[_Value, ...]
    parts: tuple[tuple[str, type, ForwardState], ...]
    unseen: str

    def holds_for(self, module: Any) -> bool:
        """Returns whether it is as it was; hooks on a part would not fire."""
        for place, name, inner, value in self.values:
            found = getattr(module if place is None else place, name, None)
            found = getattr(found, inner, None) if inner else found
            if type(found) is not type(value) or found != value:
                return False
        for name, kind, state in self.parts:
            part = getattr(module, name, None)
            if type(part) is not kind or has_hooks(part) or not state.holds_for(part):
                return False
        return type(module).forward is self.forward


def forward_state_of(module: nn.Module) -> ForwardState:
    """Returns what a module's forward reads, as it is now.

    Linear layers are called by stand-ins as they are, whatever becomes of them.

    Args:
        module: Any module.

    Example:
        >>> forward_state_of(nn.RMSNorm(4, eps=1e-5)).values
        ((None, 'eps', '', 1e-05), (None, 'normalized_shape', '', (4,)))
    """
    functions = _functions_of(type(module))
    names = sorted({n for f in functions for n in _names(f)} - _USUAL)
    classes = [c for c in type(module).__mro__ if not _is_torchs(c)]
    methods = [(c, n, vars(c).get(n)) for c in classes for n in ("forward", *names)]
    known = {*module._parameters, *module._buffers, *module._modules}
    own_values = ((n, getattr(module, n, ...)) for n in names if n not in known)
    read: list[tuple[Any, str, Any]] = [(None, *one) for one in own_values]
    values = [(c, n, "", f) for c, n, f in methods if f in functions]
    unseen = [n for n in names if n in _OWN_BACKWARD]
    for function in (f for f in functions if not _is_torchs(f)):
        place = sys.modules.get(function.__module__, dis)
        read += [(place, *one) for one in _globals_of(function).items()]
        cells = zip(function.__code__.co_freevars, _enclosed(function), strict=True)
        unseen += [n for n, f in cells if not isinstance(f, FunctionType | type)]
    for place, name, found in read:
        watched = [] if found is ... else _watched(place, name, found, names)
        values += watched or []
        unseen += [name] if watched is None else []
    parts = tuple(
        (name, type(part), forward_state_of(part))
        for name, part in module.named_children()
        if not isinstance(part, nn.Linear)
    )
    unseen += [f"{name}.{state.unseen}" for name, _, state in parts if state.unseen]
    first = min(unseen, default="")
    return ForwardState(
        type(module).forward, tuple(dict.fromkeys(values)), parts, first
    )


def has_hooks(module: Any) -> bool:
    """Returns whether a call of a module does more than its class's forward."""
    return "forward" in module.__dict__ or any(
        getattr(module, f"_{kind}") or getattr(nn_module, f"_global_{kind}")
        for kind in _HOOKS
    )


def _watched(
    place: ModuleType | None, name: str, found: Any, names: list[str]
) -> list[_Value] | None:
    """Returns what tells of a change of a value, or None if nothing does."""
    is_method = isinstance(found, MethodType) and place is None
    is_space = isinstance(found, type | ModuleType)
    if (is_method or is_space) and _is_torchs(found):
        return []
    if is_method:
        return [(None, name, "__func__", found.__func__)]
    if _is_simple(found) or _is_function(found):
        return [(place, name, "", found)]
    if not is_space and (callable(found) or isinstance(found, _CONTAINERS)):
        return None
    held = {n: getattr(found, n, ...) for n in names} if not is_space else vars(found)
    inner = [(n, held[n]) for n in names if held.get(n, ...) is not ...]
    if all(_is_simple(v) or (is_space and callable(v)) for _, v in inner):
        return [(place, name, n, v) for n, v in inner if _is_simple(v)]
    return None


def _is_simple(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(one, _SIMPLE) for one in value)
    return isinstance(value, _SIMPLE)


def _is_function(value: Any) -> bool:
    # Methods of a built-in object, as of a list, are of no module.
    known = isinstance(value, BuiltinFunctionType) and value.__module__ is not None
    return known or isinstance(value, FunctionType | partial)


def _is_torchs(value: Any) -> bool:
    name = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    return str(name).partition(".")[0] == "torch"


def _functions_of(kind: type) -> list[FunctionType]:
    """Returns the forward of a class, of its bases, and what these come to."""
    found: dict[FunctionType, None] = {}
    left: list[Any] = [vars(base).get("forward") for base in kind.__mro__]
    while left:
        one = left.pop()
        one = getattr(one, "fget", getattr(one, "__func__", one))
        if not isinstance(one, FunctionType) or one in found:
            continue
        found[one] = None
        if not _is_torchs(one):
            names = _names(one)
            held = [vars(base).get(n) for base in kind.__mro__ for n in names]
            reached = [*held, *_globals_of(one).values(), *_enclosed(one)]
            left += [other for other in reached if not _is_torchs(other)]
    return list(found)


def _globals_of(function: FunctionType) -> dict[str, Any]:
    known = function.__globals__
    steps = (one for c in _codes(function.__code__) for one in dis.get_instructions(c))
    used = {one.argval for one in steps if one.opname == "LOAD_GLOBAL"}
    return {name: known[name] for name in used if name in known}


def _enclosed(function: FunctionType) -> list[Any]:
    cells = function.__closure__ or ()
    return [next(iter(gc.get_referents(cell)), None) for cell in cells]


def _codes(code: CodeType) -> list[CodeType]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [code, *(found for one in inner for found in _codes(one))]


def _names(function: FunctionType) -> list[str]:
    """Returns the names that a function uses, those in text for `getattr` too."""
    codes = _codes(function.__code__)
    texts = [one for c in codes for one in c.co_consts if isinstance(one, str)]
    return [*texts, *(name for c in codes for name in c.co_names)]
