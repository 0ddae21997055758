"""The options of LAMB and its presets, as plain data without torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from drivetrain_optim.checks._options import (
    SHARED_OPTIONS,
    Rule,
    above_zero,
    at_least_zero,
    choice,
    flag,
    non_negative,
    optional,
    positive,
    rates,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def _is_range(value: object) -> bool:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        return False
    low, high = value
    return at_least_zero(low) and (above_zero(high) or high == math.inf) and low <= high


def _bounds(meaning: str) -> Rule:
    allowed = "two numbers 0 <= low <= high, or None"
    return Rule(None, allowed, meaning, optional(_is_range))


LAMB_OPTIONS: Mapping[str, Rule] = {
    "lr": non_negative(1e-3, "learning rate"),
    "betas": rates("decay rates of the first moment and of the second moment"),
    "eps": positive(1e-6, "added to the denominator"),
    "weight_decay": non_negative(0.01, "weight decay, applied as `decay` says"),
    "decay": choice(
        ("inside", "decoupled", "coupled"),
        "add the decay to the step that is scaled, shrink weights by lr * weight_decay, "
        "or add it to gradients",
    ),
    "bias_correction": flag(True, "divide the moments by 1 - beta^t"),
    "grad_averaging": flag(True, "weigh a new gradient by 1 - beta1 instead of 1"),
    "adapt": choice(
        ("all", "decayed", "none"),
        "which parameters take the trust ratio: all, those with weight decay, or none",
    ),
    "weight_norm_clip": _bounds(
        "bounds on the norm of the weights in the trust ratio, phi of the paper"
    ),
    "trust_clip": _bounds("bounds on the trust ratio"),
    **SHARED_OPTIONS,
}
"""The options of `LAMB` by name, in the order of its signature."""

LAMB_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "nvlamb": {"max_grad_norm": 1.0},
    "timm": {"max_grad_norm": 1.0, "adapt": "decayed"},
}
"""What each preset of `LAMB` sets differently from its defaults."""
