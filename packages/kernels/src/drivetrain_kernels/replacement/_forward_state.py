"""What a module's forward reads beside tensors: attributes, parts and their hooks."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules import module as nn_module

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIMPLE = (bool, int, float, str, type(None))
# What a plain module has; `training` is checked in both states.
_USUAL = frozenset(vars(nn.Module()))


@dataclass(frozen=True, slots=True)
class ForwardState:
    """Attributes that a forward reads, as they were when it was checked.

    Args:
        values: Each as (name, name within an object that it is in, or empty; value).
        parts: Modules that a stand-in does not call: each as (name, its class, and its
            own state).
    """

    values: tuple[tuple[str, str, Any], ...]
    parts: tuple[tuple[str, type, ForwardState], ...]

    def holds_for(self, module: Any) -> bool:
        """Returns whether it is as it was; hooks on a part would not fire."""
        for name, inner, value in self.values:
            found = getattr(module, name, None)
            if (getattr(found, inner, None) if inner else found) != value:
                return False
        for name, kind, state in self.parts:
            part = getattr(module, name, None)
            if type(part) is not kind or has_hooks(part) or not state.holds_for(part):
                return False
        return True


def forward_state_of(module: nn.Module) -> ForwardState:
    """Returns what a module's forward reads, as it is now.

    Linear layers are called by stand-ins as they are, whatever becomes of them.

    Args:
        module: Any module.

    Example:
        >>> forward_state_of(nn.RMSNorm(4, eps=1e-5)).values
        (('eps', '', 1e-05), ('normalized_shape', '', (4,)))
    """
    names = sorted(set(_names_read(type(module))) - _USUAL)
    values = []
    for name in names:
        found = vars(module).get(name)
        if (name in vars(module) and _is_simple(found)) or isinstance(
            found, FunctionType
        ):
            values.append((name, "", found))
        elif found is not None and hasattr(found, "__dict__"):
            inside = (n for n in names if _is_simple(vars(found).get(n, ...)))
            values += [(name, n, vars(found)[n]) for n in inside]
    parts = tuple(
        (name, type(part), forward_state_of(part))
        for name, part in module.named_children()
        if not isinstance(part, nn.Linear)
    )
    return ForwardState(tuple(values), parts)


def has_hooks(module: Any) -> bool:
    """Returns whether a call of a module does more than its forward."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or nn_module._global_forward_hooks
        or nn_module._global_forward_pre_hooks
        or nn_module._global_backward_hooks
        or nn_module._global_backward_pre_hooks
    )


def _is_simple(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(one, _SIMPLE) for one in value)
    return isinstance(value, _SIMPLE)


def _names_read(kind: type) -> Iterator[str]:
    """Yields the names that a class's forward uses, and the methods that it calls."""
    left, seen = ["forward"], set[str]()
    while left:
        function = getattr(kind, left.pop(), None)
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType):
            continue
        inner = [c for c in code.co_consts if isinstance(c, CodeType)]
        for name in (n for one in (code, *inner) for n in one.co_names):
            if name not in seen:
                seen.add(name)
                left.append(name)
                yield name
