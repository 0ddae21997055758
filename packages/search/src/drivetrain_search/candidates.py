"""Candidates of a search: the choices that an open value of a strategy stands for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drivetrain_core import Choice, Code, PlanError
from drivetrain_core.extending import AUTO, find

if TYPE_CHECKING:
    from drivetrain_core import Context


def candidates_of(name: str, value: object, context: Context) -> tuple[Choice, ...]:
    """Returns the choices that an open value stands for.

    Args:
        name: The optimization.
        value: `"auto"`, a list of values, or a mapping with open options.
        context: The facts that `"auto"` is answered from.

    Raises:
        PlanError: The optimization or an option is unknown, a value is not allowed,
            a list is empty, or `"auto"` stands for an option without known values.
    """
    optimization = find(name)
    proposed = [
        optimization.normalize(given) for given in optimization.configs(context)
    ]
    if value == AUTO:
        return tuple(dict.fromkeys(Choice(name, config) for config in proposed))
    if isinstance(value, Mapping):
        axes = {k: _values(name, k, v, proposed) for k, v in value.items()}
        given: list[object] = [
            dict(zip(axes, combination, strict=True))
            for combination in itertools.product(*axes.values())
        ]
    else:
        assert isinstance(value, Sequence)
        given = list(value)
    if not given:
        raise PlanError(
            Code.CONFIG,
            name,
            because="its list of values to search is empty",
            fix=f"give values, or {AUTO!r}",
        )
    full = [Choice(name, optimization.normalize(config)) for config in given]
    return tuple(dict.fromkeys(full))


def _values(
    name: str, option: str, value: object, proposed: Sequence[Mapping[str, object]]
) -> list[object]:
    if isinstance(value, list | tuple):
        return list(value)
    if value != AUTO:
        return [value]
    known = getattr(find(name), "options", {}).get(option)
    choices = list(known.choices) if known is not None else []
    found = choices or [config[option] for config in proposed if option in config]
    if not found:
        raise PlanError(
            Code.CONFIG,
            name,
            because=f"option {option} has no values that {AUTO!r} could stand for",
            fix=f"give a list of values for {option}",
        )
    return list(dict.fromkeys(found))
