"""Partial strategies: some values are given, others are left to the search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from drivetrain_core._errors import Code, PlanError
from drivetrain_core._plan import Plan

AUTO = "auto"
"""The value that leaves an optimization, or one of its options, to the search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Partial:
    """A strategy with open ends.

    Args:
        fixed: Entries that every plan holds, as the user wrote them.
        open: What is left to the search, by name: `"auto"`, a list of values, or a
            mapping of options some of which are `"auto"` or lists.
    """

    fixed: tuple[object, ...] = ()
    open: Mapping[str, object] = field(default_factory=dict)


def read_partial(strategy: object) -> Partial | None:
    """Returns the parts of a strategy that leaves something open, else None.

    Raises:
        PlanError: It leaves something open and names one optimization twice.

    Example:
        >>> partial = read_partial({"compile": "block", "micro_batch": [1, 2, 4]})
        >>> partial.fixed, dict(partial.open)
        ((('compile', 'block'),), {'micro_batch': [1, 2, 4]})
        >>> read_partial(["compile"]) is None
        True
    """
    if isinstance(strategy, str | Plan):
        return None
    if isinstance(strategy, Mapping):
        entries: list[object] = list(strategy.items())
    elif isinstance(strategy, Iterable):
        entries = list(strategy)
    else:
        return None
    if not any(pair and _is_open(pair[1]) for pair in map(_pair, entries)):
        return None
    fixed, left_open, named = [], {}, list[object]()
    for entry in entries:
        pair = _pair(entry)
        name = pair[0] if pair is not None else getattr(entry, "name", entry)
        if name in named:
            raise PlanError(
                Code.CONFLICT,
                str(name),
                because="the strategy names it twice",
                fix="name it once, with all of its values in one list",
            )
        named.append(name)
        if pair is not None and _is_open(pair[1]):
            left_open[pair[0]] = pair[1]
        else:
            fixed.append(entry)
    return Partial(fixed=tuple(fixed), open=left_open)


def _pair(entry: object) -> tuple[str, object] | None:
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, value),) = entry.items()
        return (name, value) if isinstance(name, str) else None
    if isinstance(entry, tuple | list) and len(entry) == 2:
        name, value = entry
        return (name, value) if isinstance(name, str) else None
    return None


def _is_open(value: object) -> bool:
    if value == AUTO or isinstance(value, list | tuple):
        return True
    if isinstance(value, Mapping):
        return any(v == AUTO or isinstance(v, list | tuple) for v in value.values())
    return False
