"""Observation of a trial as plain data, as a trial's process sends it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from drivetrain_core.numerics.observation import Accounting, Observation, ParameterUsage

if TYPE_CHECKING:
    from collections.abc import Mapping


def write_observation(observation: Observation) -> dict[str, Any]:
    """Returns an observation as plain data, from which `read_observation` makes it again.

    Args:
        observation: What a process saw.

    Example:
        >>> seen = Observation(losses=(2.0,), norms={}, samples={}, moved=frozenset("ba"))
        >>> write_observation(seen)["moved"]
        ['a', 'b']
        >>> read_observation(write_observation(seen)) == seen
        True
    """
    plain = asdict(observation)
    plain["moved"] = sorted(observation.moved)
    plain["liveness"]["evaluating"] = sorted(observation.liveness.evaluating)
    return plain


def read_observation(data: Mapping[str, Any]) -> Observation:
    """Returns the observation that `write_observation` wrote.

    Args:
        data: The plain data, also after it went through JSON.
    """
    plain = _frozen(data)
    usage = {
        **plain["liveness"],
        "evaluating": frozenset(plain["liveness"]["evaluating"]),
    }
    read = {
        "moved": frozenset(plain["moved"]),
        "accounting": Accounting(**plain["accounting"]),
        "liveness": ParameterUsage(**usage),
    }
    return Observation(**{**plain, **read})


def _frozen(value: Any) -> Any:
    """Returns plain data with tuples in place of lists."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(part) for key, part in value.items()}
    return value
