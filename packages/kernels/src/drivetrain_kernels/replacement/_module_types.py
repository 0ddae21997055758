"""Table of the module types that an op can stand in for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from drivetrain_kernels.replacement._gated_mlp import gated_mlp_matches
from drivetrain_kernels.replacement._norms import layer_norm_matches, rms_norm_matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_kernels._dispatch import Op
    from drivetrain_kernels.replacement._identify import OpMatch

from drivetrain_kernels.ops import (
    _cross_entropy,
    _geglu,
    _layer_norm,
    _rms_norm,
    _swiglu,
)

KINDS: dict[str, Op[Any]] = {
    "cross_entropy": _cross_entropy.OP,
    "geglu": _geglu.OP,
    "layer_norm": _layer_norm.OP,
    "rms_norm": _rms_norm.OP,
    "swiglu": _swiglu.OP,
}

_FINDERS: tuple[Callable[[nn.Module], list[OpMatch]], ...] = (
    rms_norm_matches,
    layer_norm_matches,
    gated_mlp_matches,
)


def matches_for(module: nn.Module) -> list[OpMatch]:
    """Returns what a module may be; empty if it is like nothing here.

    Args:
        module: One module, its children aside.
    """
    return [match for find in _FINDERS for match in find(module)]


def known_to_be_left(module: nn.Module) -> str:
    """Returns why a module that one might expect to be replaced is not, or nothing.

    Example:
        >>> known_to_be_left(nn.Linear(2, 2))
        ''
    """
    if isinstance(module, nn.MultiheadAttention):
        return "torch's own attention takes scaled_dot_product_attention already"
    if type(module).__name__.endswith(("Attention", "SelfAttention")):
        return "a model chooses its attention itself (attn_implementation)"
    return ""
