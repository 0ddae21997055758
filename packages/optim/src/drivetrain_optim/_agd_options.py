"""The options of AGD, as plain data without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

__all__ = ["AGD_OPTIONS", "DELTA_PRESETS"]

DELTA_PRESETS: Mapping[str, float] = {
    "default": 1e-5,
    "cnn": 1e-8,
    "transformer": 1e-14,
}
"""The values of AGD's `delta` that its authors advise, by kind of model."""

_DECAYS = ("decoupled", "fixed", "coupled")

AGD_OPTIONS: Mapping[str, Rule] = {
    "lr": Rule(1e-3, "a finite number >= 0", "learning rate", at_least_zero),
    "betas": Rule(
        (0.9, 0.999),
        "two numbers in [0, 1)",
        "decay rates of the first moment and of the second moment",
        two_rates,
    ),
    "delta": Rule(
        DELTA_PRESETS["default"],
        "a finite number > 0 or one of default, cnn, transformer",
        "floor of the denominator, below which a coordinate steps like SGD",
        above_zero,
        tuple(DELTA_PRESETS),
        DELTA_PRESETS,
    ),
    "weight_decay": Rule(
        0.0,
        "a finite number >= 0",
        "weight decay, applied as `decay` says",
        at_least_zero,
    ),
    "decay": Rule(
        "decoupled",
        "one of decoupled, fixed, coupled",
        "shrink weights by lr * weight_decay, by weight_decay, or add it to gradients",
        one_of(*_DECAYS),
        _DECAYS,
    ),
    "amsgrad": Rule(
        False, "True or False", "use the largest second moment so far", flag
    ),
    "clip": Rule(
        None,
        "a finite number > 0 or None",
        "bound on each coordinate of the step before the learning rate",
        optional(above_zero),
    ),
    **SHARED_OPTIONS,
}
"""The options of `AGD` by name, in the order of its signature."""
