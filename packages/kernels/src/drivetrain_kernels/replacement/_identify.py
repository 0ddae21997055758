"""Identification of modules: an op that could stand in for a module's `forward`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from drivetrain_kernels._dispatch import Op
    from drivetrain_kernels.replacement._forward_state import ForwardState

Standin = Callable[..., Any]
"""A function that is bound to a module in place of its `forward`."""

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_eps")


@dataclass(frozen=True, kw_only=True)
class OpMatch:
    """One op with one set of options, for one module.

    Args:
        kind: As plans name it.
        what: The op and its options, for tables.
        op: The op's table of implementations.
        build: Returns the stand-in for an implementation by name, and for what the
            module's forward reads; the same object for the same options, so that
            compiled code is shared by layers.
        facts: Returns the facts of the op's call, for a module and its input.
        width: The size of the input's last dimension.
    """

    kind: str
    what: str
    op: Op[Any]
    build: Callable[[str, ForwardState], Standin]
    facts: Callable[[nn.Module, Tensor], Any]
    width: int


def method(
    compute: Callable[[Any, Tensor], Tensor],
    weight_of: Callable[[Any], Any],
    known: ForwardState,
) -> Standin:
    """Returns a stand-in from a function of (module, input).

    A call of another form than the checked one goes to the module's own `forward`: with
    further arguments, with an input of another dtype than its parameters', as autocast
    makes them, or when something that its forward reads, a part of it, or a hook on
    one, has changed since.

    Args:
        compute: Computes what the module's `forward` does.
        weight_of: Returns the parameter whose dtype the input must have.
        known: What the forward read when it was checked.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        weight = weight_of(self)
        is_known = not kwargs and len(args) == 1 and isinstance(weight, torch.Tensor)
        if is_known and args[0].dtype == weight.dtype and known.holds_for(self):
            return compute(self, args[0])
        return type(self).forward(self, *args, **kwargs)

    forward._stands_in = True  # type: ignore[attr-defined]
    return forward


def is_standin(forward: object) -> bool:
    """Returns whether a module's `forward` is a stand-in already."""
    return getattr(getattr(forward, "__func__", None), "_stands_in", False) is True


def norm_eps(module: nn.Module) -> float | None:
    """Returns the epsilon of a norm, or None if it names none."""
    for name in _EPS_NAMES:
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None
