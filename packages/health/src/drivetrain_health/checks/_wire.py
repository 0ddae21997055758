"""What nodes tell each other of their checks, as JSON that nobody has to trust."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from drivetrain_health.decisions.node_results import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_health.checks._check_node import NodeReport

_MOST_CHARACTERS, _MOST_ENTRIES, _MOST_NAME = 1 << 16, 512, 300
_TEXTS = ("network_failure", "received", "wrong_bits")
_TABLES = ("failures", "digests", "not_made")


def write_result(report: NodeReport, group: tuple[str, ...]) -> str:
    """Returns what a node says after a round.

    Args:
        report: What it has measured.
        group: With whom.
    """
    said: dict[str, Any] = {"group": list(group), "measures": dict(report.measures)}
    for name in _TEXTS:
        said[name] = getattr(report, name)[:_MOST_NAME]
    for name in _TABLES:
        table: Mapping[str, str] = getattr(report, name)
        said[name] = {key: text[:_MOST_NAME] for key, text in table.items()}
    return json.dumps(said)


def read_result(
    text: str, *, round_number: int, node: str, group: tuple[str, ...]
) -> Result:
    """Returns the result in what a node has said; its failure if it cannot be read.

    Args:
        text: What it has said.
        round_number: In which round.
        node: Which one.
        group: The one that it was asked to be in.

    Example:
        >>> where = {"round_number": 0, "node": "a", "group": ("a",)}
        >>> read_result('{"measures": {"x_gflops": 1}}', **where).measures
        {'x_gflops': 1.0}
        >>> read_result('{"measures": [1]}', **where).failures
        {'result': 'cannot be read: measures must be a table, got [1]'}
    """
    try:
        return _read(text, round_number, node, group)
    except (ValueError, OverflowError, RecursionError) as error:
        why = f"cannot be read: {error}"[:_MOST_NAME]
        return Result(round_number, node, group, failures={"result": why})


def _read(text: str, round_number: int, node: str, group: tuple[str, ...]) -> Result:
    if len(text) > _MOST_CHARACTERS:
        message = f"{len(text)} characters, of at most {_MOST_CHARACTERS}"
        raise ValueError(message)
    said = json.loads(text)
    if not isinstance(said, dict):
        message = f"it must be a table, got {said!r:.50}"
        raise ValueError(message)  # noqa: TRY004
    members = said.get("group", list(group))
    if members != list(group):
        message = f"it is of the group {members!r:.100}, asked was {', '.join(group)}"
        raise ValueError(message)
    measures = {
        name: _number(name, value) for name, value in _table(said, "measures").items()
    }
    failures, digests, not_made = (
        {key: _text(key, value) for key, value in _table(said, name).items()}
        for name in _TABLES
    )
    why, received, wrong = (_text(name, said.get(name, "")) for name in _TEXTS)
    return Result(
        *(round_number, node, group, measures, failures),
        network_failure=why,
        received=received,
        wrong_bits=wrong,
        digests=digests,
        not_made=not_made,
    )


def _table(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = said.get(name, {})
    if not isinstance(table, dict) or len(table) > _MOST_ENTRIES:
        message = f"{name} must be a table, got {table!r:.50}"
        raise ValueError(message)
    for key in table:
        _text(name, key)
    return table


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MOST_NAME:
        message = f"{name} must be a text of at most {_MOST_NAME}, got {value!r:.50}"
        raise ValueError(message)
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        message = f"{name} must be a number, got {value!r:.50}"
        raise ValueError(message)  # noqa: TRY004
    return float(value)
