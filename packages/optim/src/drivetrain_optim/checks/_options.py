"""Options of the optimizers, as `options.toml` lists them, and the check of a value.

Plain data and pure functions without torch, so that plans and the command line can
read and check options without loading it.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from importlib.resources import files
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


def _at_least_zero(value: Any) -> bool:
    return _number(value) and value >= 0


def _above_zero(value: Any) -> bool:
    return _number(value) and value > 0


def _below_one(value: Any) -> bool:
    return _at_least_zero(value) and value < 1


def _two_rates(value: Any) -> bool:
    pair = isinstance(value, tuple | list) and len(value) == 2
    return pair and all(map(_below_one, value))


def _is_range(value: Any) -> bool:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        return False
    low, high = value
    is_end = _above_zero(high) or high == math.inf
    return _at_least_zero(low) and is_end and low <= high


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_state_dtype(value: Any) -> bool:
    # By name, so that this module does without torch.
    names = ("float32", "float64", "torch.float32", "torch.float64", "None")
    return value != "None" and str(value) in names


def _or_none(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or accepts(value)


_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "non_negative": ("a finite number >= 0", _at_least_zero),
    "positive": ("a finite number > 0", _above_zero),
    "bound": ("a finite number > 0 or None", _or_none(_above_zero)),
    "fraction": ("a number in [0, 1)", _below_one),
    "rates": ("two numbers in [0, 1)", _two_rates),
    "range": ("two numbers 0 <= low <= high, or None", _or_none(_is_range)),
    "count": ("an integer >= 1", _count),
    "flag": ("True or False", _is_flag),
    "flag_or_none": ("True, False or None", _or_none(_is_flag)),
    "never": (
        "False, since steps cannot be differentiated through",
        lambda value: value is False,
    ),
    "state_dtype": (
        "float32, float64, a torch.dtype of that name, or None",
        _is_state_dtype,
    ),
}


def _rule_of(row: Mapping[str, Any]) -> Rule:
    """Returns what a row of the file says."""
    names = tuple(row.get("names", ()))
    presets = row.get("presets")
    listed = ", ".join(names or presets or ())
    if names:
        allowed, accepts = f"one of {listed}", _one_of(names)
    else:
        allowed, accepts = _RULES[row["rule"]]
        allowed += f" or one of {listed}" if presets else ""
    default = row.get("default", names[0] if names else None)
    if isinstance(default, list):
        default = tuple(default)
    names = names or tuple(presets or ())
    return Rule(default, allowed, row["meaning"], accepts, names, presets)


def _one_of(names: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in names


_FILE = tomllib.loads(files(__package__).joinpath("options.toml").read_text("utf-8"))
_TABLES = {
    optimizer: {name: _rule_of(row) for name, row in _FILE[optimizer].items()}
    for optimizer in ("agd", "lamb", "wsam", "shared")
}
AGD_OPTIONS: Mapping[str, Rule] = _TABLES["agd"] | _TABLES["shared"]
"""The options of `AGD` by name, in the order of its signature."""

LAMB_OPTIONS: Mapping[str, Rule] = _TABLES["lamb"] | _TABLES["shared"]
"""The options of `LAMB` by name, in the order of its signature."""

WSAM_OPTIONS: Mapping[str, Rule] = _TABLES["wsam"]
"""The options of `WSAM` by name, in the order of its signature."""

DELTA_PRESETS: Mapping[str, float] = _FILE["agd"]["delta"]["presets"]
"""The values of AGD's `delta` that its authors advise, by kind of model."""

LAMB_PRESETS: Mapping[str, Mapping[str, Any]] = _FILE["lamb_presets"]
"""What each preset of `LAMB` sets differently from its defaults."""


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
        >>> rules = {"eps": Rule(1e-6, "a finite number > 0", "floor", lambda eps: eps > 0)}
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
