"""The options of WSAM, as plain data without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_optim.checks._options import (
    Rule,
    at_least_zero,
    bound,
    choice,
    flag,
    non_negative,
    positive,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def _below_one(value: object) -> bool:
    return at_least_zero(value) and value < 1  # type: ignore[operator]


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


WSAM_OPTIONS: Mapping[str, Rule] = {
    "rho": non_negative(0.05, "radius of the neighbourhood whose worst loss counts"),
    "gamma": Rule(
        0.9,
        "a number in [0, 1)",
        "weight of sharpness: 0 is the base optimizer, 0.5 is SAM",
        _below_one,
    ),
    "adaptive": flag(False, "scale the neighbourhood with the weights (ASAM)"),
    "decouple": flag(True, "keep sharpness out of the base's moments"),
    "eps": positive(1e-12, "added to the gradient's norm before dividing by it"),
    "max_grad_norm": bound("bound on the norm of each of the two gradients"),
    "every_k": Rule(
        1,
        "an integer >= 1",
        "how many steps share one second pass, as in LookSAM",
        _count,
    ),
    "gradient": choice(
        ("global", "local"),
        "perturb along the gradient of all ranks, or each along its own",
    ),
}
"""The options of `WSAM` by name, in the order of its signature."""
