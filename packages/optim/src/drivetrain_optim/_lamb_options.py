"""The options of LAMB and its presets, as plain data without torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from drivetrain_optim._options import (
    SHARED_OPTIONS,
    Rule,
    above_zero,
    at_least_zero,
    flag,
    one_of,
    optional,
    two_rates,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LAMB_OPTIONS", "LAMB_PRESETS"]

_DECAYS = ("inside", "decoupled", "coupled")
_ADAPTS = ("all", "decayed", "none")


def _bounds(value: object) -> bool:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        return False
    low, high = value
    return at_least_zero(low) and (above_zero(high) or high == math.inf) and low <= high


LAMB_OPTIONS: Mapping[str, Rule] = {
    "lr": Rule(1e-3, "a finite number >= 0", "learning rate", at_least_zero),
    "betas": Rule(
        (0.9, 0.999),
        "two numbers in [0, 1)",
        "decay rates of the first moment and of the second moment",
        two_rates,
    ),
    "eps": Rule(1e-6, "a finite number > 0", "added to the denominator", above_zero),
    "weight_decay": Rule(
        0.01,
        "a finite number >= 0",
        "weight decay, applied as `decay` says",
        at_least_zero,
    ),
    "decay": Rule(
        "inside",
        "one of inside, decoupled, coupled",
        "add the decay to the step that is scaled, shrink weights by lr * weight_decay, "
        "or add it to gradients",
        one_of(*_DECAYS),
        _DECAYS,
    ),
    "bias_correction": Rule(
        True, "True or False", "divide the moments by 1 - beta^t", flag
    ),
    "grad_averaging": Rule(
        True, "True or False", "weigh a new gradient by 1 - beta1 instead of 1", flag
    ),
    "adapt": Rule(
        "all",
        "one of all, decayed, none",
        "which parameters take the trust ratio: all, those with weight decay, or none",
        one_of(*_ADAPTS),
        _ADAPTS,
    ),
    "weight_norm_clip": Rule(
        None,
        "two numbers 0 <= low <= high, or None",
        "bounds on the norm of the weights in the trust ratio, phi of the paper",
        optional(_bounds),
    ),
    "trust_clip": Rule(
        None,
        "two numbers 0 <= low <= high, or None",
        "bounds on the trust ratio",
        optional(_bounds),
    ),
    **SHARED_OPTIONS,
}
"""The options of `LAMB` by name, in the order of its signature."""

LAMB_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "nvlamb": {"max_grad_norm": 1.0},
    "timm": {"max_grad_norm": 1.0, "adapt": "decayed"},
}
"""What each preset of `LAMB` sets differently from its defaults."""
