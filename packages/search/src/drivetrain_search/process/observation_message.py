"""Observation of a trial as plain data, as a trial's process sends it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from drivetrain_core.numerics.observation import (
    Accounting,
    Observation,
    ParameterUsage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# Values by name; JSON makes lists of their tuples.
_VALUES = (
    "samples",
    "buffers",
    "updates",
    "journey",
    "swayed_updates",
    "swayed_journey",
    "swayed_buffers",
)


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
    accounting, liveness = data["accounting"], data["liveness"]
    steered = {
        "ties": _rows(liveness["ties"]),
        "rates": _rows(liveness["rates"]),
        "apart": tuple(liveness["apart"]),
        "evaluating": frozenset(liveness["evaluating"]),
    }
    read = {
        **{name: tuple(data[name]) for name in ("losses", "swayed", "nudged")},
        **{name: {k: tuple(v) for k, v in data[name].items()} for name in _VALUES},
        "moved": frozenset(data["moved"]),
        "accounting": Accounting(**{**accounting, "drawn": _rows(accounting["drawn"])}),
        "liveness": ParameterUsage(**{**liveness, **steered}),
    }
    return Observation(**{**data, **read})


def _rows(rows: Any) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(row) for row in rows)
