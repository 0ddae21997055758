"""The options of AGD, as plain data without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_optim.checks._options import (
    SHARED_OPTIONS,
    Rule,
    above_zero,
    bound,
    choice,
    flag,
    non_negative,
    rates,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

DELTA_PRESETS: Mapping[str, float] = {
    "default": 1e-5,
    "cnn": 1e-8,
    "transformer": 1e-14,
}
"""The values of AGD's `delta` that its authors advise, by kind of model."""

AGD_OPTIONS: Mapping[str, Rule] = {
    "lr": non_negative(1e-3, "learning rate"),
    "betas": rates("decay rates of the first moment and of the second moment"),
    "delta": Rule(
        DELTA_PRESETS["default"],
        "a finite number > 0 or one of default, cnn, transformer",
        "floor of the denominator, below which a coordinate steps like SGD",
        above_zero,
        tuple(DELTA_PRESETS),
        DELTA_PRESETS,
    ),
    "weight_decay": non_negative(0.0, "weight decay, applied as `decay` says"),
    "decay": choice(
        ("decoupled", "fixed", "coupled"),
        "shrink weights by lr * weight_decay, by weight_decay, or add it to gradients",
    ),
    "amsgrad": flag(False, "use the largest second moment so far"),
    "clip": bound("bound on each coordinate of the step before the learning rate"),
    **SHARED_OPTIONS,
}
"""The options of `AGD` by name, in the order of its signature."""
