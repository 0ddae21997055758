"""The options of WSAM, as plain data without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_optim._options import Rule, above_zero, at_least_zero, flag, one_of
from drivetrain_optim._options import optional as or_none

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["WSAM_OPTIONS"]

_GRADIENTS = ("global", "local")


def _below_one(value: object) -> bool:
    return at_least_zero(value) and value < 1  # type: ignore[operator]


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


WSAM_OPTIONS: Mapping[str, Rule] = {
    "rho": Rule(
        0.05,
        "a finite number >= 0",
        "radius of the neighbourhood whose worst loss counts",
        at_least_zero,
    ),
    "gamma": Rule(
        0.9,
        "a number in [0, 1)",
        "weight of sharpness: 0 is the base optimizer, 0.5 is SAM",
        _below_one,
    ),
    "adaptive": Rule(
        False, "True or False", "scale the neighbourhood with the weights (ASAM)", flag
    ),
    "decouple": Rule(
        True, "True or False", "keep sharpness out of the base's moments", flag
    ),
    "eps": Rule(
        1e-12,
        "a finite number > 0",
        "added to the gradient's norm before dividing by it",
        above_zero,
    ),
    "max_grad_norm": Rule(
        None,
        "a finite number > 0 or None",
        "bound on the norm of each of the two gradients",
        or_none(above_zero),
    ),
    "every_k": Rule(
        1,
        "an integer >= 1",
        "how many steps share one second pass, as in LookSAM",
        _count,
    ),
    "gradient": Rule(
        "global",
        "one of global, local",
        "perturb along the gradient of all ranks, or each along its own",
        one_of(*_GRADIENTS),
        _GRADIENTS,
    ),
}
"""The options of `WSAM` by name, in the order of its signature."""
