"""Gated feed-forwards: SwiGLU and GeGLU between three projections, or two."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drivetrain_kernels.ops import _geglu, _swiglu
from drivetrain_kernels.replacement._identify import OpMatch, Standin, method

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_kernels.replacement._forward_state import ForwardState

_THREE = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("wi_0", "wi_1", "wo"),
    ("gate", "up", "down"),
)
"""The names of gate, up and down projections."""

_TWO = (("gate_up_proj", "down_proj"),)
"""The names of a joined gate and up projection, and the down projection."""

_ACTIVATIONS = {
    "swiglu": (None,),
    "geglu": ("tanh", "none"),
}


def gated_mlp_matches(module: nn.Module) -> list[OpMatch]:
    """Returns how a module might be a gated feed-forward; empty if it has no such parts.

    Which activation it has is found out by running it.

    Args:
        module: Any module.
    """
    for names in (*_THREE, *_TWO):
        parts = [getattr(module, name, None) for name in names]
        if all(isinstance(part, nn.Linear) for part in parts):
            break
    else:
        return []
    first = getattr(module, names[0])
    return [
        _guess(kind, names, approximate, first.in_features)
        for kind, forms in _ACTIVATIONS.items()
        for approximate in forms
    ]


def _guess(
    kind: str, names: tuple[str, ...], approximate: str | None, width: int
) -> OpMatch:
    def facts(module: nn.Module, x: Tensor) -> Any:
        with torch.no_grad():
            gate, up = _gate_and_up(module, x, names)
        if approximate is None:
            return _swiglu.facts(gate, up)
        return _geglu.facts(gate, up, approximate=approximate)

    return OpMatch(
        kind=kind,
        what=kind if approximate is None else f"{kind}(approximate={approximate})",
        op=_swiglu.OP if approximate is None else _geglu.OP,
        build=functools.partial(_standin, names, approximate),
        facts=facts,
        width=width,
    )


@functools.cache
def _standin(
    names: tuple[str, ...], approximate: str | None, impl: str, known: ForwardState
) -> Standin:
    gated: Callable[..., Tensor] = functools.partial(_swiglu.swiglu, impl=impl)
    if approximate is not None:
        gated = functools.partial(_geglu.geglu, approximate=approximate, impl=impl)
    down = names[-1]

    def compute(module: nn.Module, x: Tensor) -> Tensor:
        gate, up = _gate_and_up(module, x, names)
        out: Tensor = getattr(module, down)(gated(gate, up))
        return out

    def weight_of(module: nn.Module) -> Any:
        return getattr(getattr(module, down), "weight", None)

    return method(compute, weight_of, known)


def _gate_and_up(
    module: nn.Module, x: Tensor, names: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    if len(names) == 2:
        gate, up = getattr(module, names[0])(x).chunk(2, dim=-1)
        return gate, up
    return getattr(module, names[0])(x), getattr(module, names[1])(x)
