"""Rules of optimizer options: defaults, what is allowed, and the check of a value.

Plain data and pure functions without torch, so that plans and the command line can
read and check options without loading it.
"""

from __future__ import annotations

import difflib
import math
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_optim._errors import HyperparameterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Rule(NamedTuple):
    """One option: its default, what is allowed, and what it means.

    Args:
        default: The value when the user gives none.
        allowed: What is allowed, as it stands in error messages.
        meaning: What the option does, in one line.
        accepts: Whether a value is allowed.
        names: The names that stand for a value, if there are any.
        presets: The values that some of the names stand for.
    """

    default: object
    allowed: str
    meaning: str
    accepts: Callable[[object], bool]
    names: tuple[str, ...] = ()
    presets: Mapping[str, float] | None = None


def _number(value: object) -> bool:
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and math.isfinite(float(value))  # type: ignore[arg-type]


def at_least_zero(value: object) -> bool:
    """Whether a value is a finite number >= 0."""
    return _number(value) and value >= 0  # type: ignore[operator]


def above_zero(value: object) -> bool:
    """Whether a value is a finite number > 0."""
    return _number(value) and value > 0  # type: ignore[operator]


def _two_rates(value: object) -> bool:
    pair = isinstance(value, tuple | list) and len(value) == 2
    return pair and all(at_least_zero(rate) and rate < 1 for rate in value)  # type: ignore[attr-defined]


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def optional(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    """Returns a function that also accepts None."""
    return lambda value: value is None or accepts(value)


def non_negative(default: float, meaning: str) -> Rule:
    """Returns the rule of a finite number >= 0."""
    return Rule(default, "a finite number >= 0", meaning, at_least_zero)


def positive(default: float, meaning: str) -> Rule:
    """Returns the rule of a finite number > 0."""
    return Rule(default, "a finite number > 0", meaning, above_zero)


def bound(meaning: str) -> Rule:
    """Returns the rule of a finite number > 0 that is None by default, for no bound."""
    return Rule(None, "a finite number > 0 or None", meaning, optional(above_zero))


def rates(meaning: str) -> Rule:
    """Returns the rule of the decay rates of two moments."""
    return Rule((0.9, 0.999), "two numbers in [0, 1)", meaning, _two_rates)


def flag(default: bool | None, meaning: str) -> Rule:
    """Returns the rule of a switch; one that is None by default may be None."""
    if default is None:
        return Rule(None, "True, False or None", meaning, optional(_is_flag))
    return Rule(default, "True or False", meaning, _is_flag)


def choice(names: tuple[str, ...], meaning: str) -> Rule:
    """Returns the rule of one of several names, the first by default."""

    def accepts(value: object) -> bool:
        return isinstance(value, str) and value in names

    return Rule(names[0], f"one of {', '.join(names)}", meaning, accepts, names)


# By name, so that this module does without torch.
_STATE_DTYPES = ("float32", "float64", "torch.float32", "torch.float64", "None")

SHARED_OPTIONS: Mapping[str, Rule] = {
    "max_grad_norm": bound(
        "bound on the norm of all gradients together, applied within the step"
    ),
    "maximize": flag(False, "ascend instead of descend"),
    "foreach": flag(None, "force (True) or exclude (False) multi-tensor operations"),
    "fused": flag(None, "force (True) or exclude (False) the fused kernels"),
    "capturable": flag(
        False,
        "keep the step count on the device, so that a CUDA graph can hold the step",
    ),
    "differentiable": Rule(
        False,
        "False, since steps cannot be differentiated through",
        "accepted as False only",
        lambda value: value is False,
    ),
    "state_dtype": Rule(
        "float32",
        "float32, float64, a torch.dtype of that name, or None",
        "narrowest dtype of the moments; None keeps the parameter's",
        lambda value: value != "None" and str(value) in _STATE_DTYPES,
    ),
    "master_weights": flag(False, "keep a float32 copy of weights that are narrower"),
    "stochastic_rounding": flag(
        False, "round bf16 weights up or down at random, without bias"
    ),
    "check_finite": flag(
        False, "raise before the step if a gradient is not finite, with its name"
    ),
}
"""The options that AGD and LAMB share, in the order of their signatures."""


def checked(
    optimizer: str, rules: Mapping[str, Rule], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the options that were given, checked, with preset names resolved.

    Args:
        optimizer: The optimizer's name, for messages.
        rules: Its options.
        given: Values by name; names without a rule are passed through.

    Raises:
        HyperparameterError: A value is not allowed.

    Example:
        >>> rules = {"eps": Rule(1e-6, "a finite number > 0", "floor", above_zero)}
        >>> checked("LAMB", rules, {"eps": 1e-8, "params": []})
        {'eps': 1e-08, 'params': []}
        >>> checked("LAMB", rules, {"eps": 0.0})
        Traceback (most recent call last):
        ...
        drivetrain_optim._errors.HyperparameterError: LAMB: eps must be a finite \
number > 0, got 0.0
    """
    options = dict(given)
    for name, value in options.items():
        rule = rules.get(name)
        if rule is None:
            continue
        if rule.presets and isinstance(value, str):
            options[name] = value = rule.presets.get(value, value)
        if rule.accepts(value):
            continue
        near = difflib.get_close_matches(str(value), rule.names, n=2)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        message = f"{optimizer}: {name} must be {rule.allowed}, got {value!r}{hint}"
        raise HyperparameterError(message)
    return options
