"""Graphs of links as JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_comm.compiler._errors import LinkGraphError
from drivetrain_comm.compiler._graph import LinkGraph, Wire
from drivetrain_comm.compiler._topologies import from_matrix
from drivetrain_core.commands import reason_of
from drivetrain_core.strict_json import unique_keys

if TYPE_CHECKING:
    import os

_HEADER = "drivetrain_links"
_VERSION = 1
_WIRE = {"source": str, "target": str, "bytes_per_s": float, "delay_s": float}


class _Links(NamedTuple):
    delay_s: tuple[tuple[float, ...], ...]
    bytes_per_s: tuple[tuple[float, ...], ...]


def graph_to_json(graph: LinkGraph) -> str:
    """Returns the text of a file that describes a graph.

    Example:
        >>> from drivetrain_comm.compiler import star
        >>> graph = star([1e9, 1e9], 1e-6)
        >>> graph_from_json(graph_to_json(graph)) == graph
        True
    """
    content = {
        _HEADER: _VERSION,
        "name": graph.name,
        "num_ranks": graph.num_ranks,
        "wires": [
            {name: getattr(wire, name) for name in _WIRE} for wire in graph.wires
        ],
    }
    return json.dumps(content, indent=1)


def graph_from_json(text: str, source: str = "graph") -> LinkGraph:
    """Returns the graph that a text describes.

    Args:
        text: The text of a file: `drivetrain_links` (1), `name`, `num_ranks` and
            `wires`, each with `source`, `target`, `bytes_per_s` and, unless it is 0,
            `delay_s`; with `"both": true` for both directions. Or what `drivetrain
            fabric topo --measure --json` prints.
        source: What to call it in errors.

    Raises:
        LinkGraphError: It is no such text, or no valid graph; the message says where.
    """
    try:
        content = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        message = f"{source}: it is no JSON: {error}"
        raise LinkGraphError(message) from error
    if isinstance(content, dict) and isinstance(content.get("links"), dict):
        return _measured(content["links"], source)
    version = content.get(_HEADER) if isinstance(content, dict) else None
    if type(version) is not int or version != _VERSION:
        message = (
            f'{source}: it must be an object with "{_HEADER}": {_VERSION}, or what '
            "drivetrain fabric topo --measure --json prints"
        )
        raise LinkGraphError(message)
    known = {_HEADER, "name", "num_ranks", "wires"}
    _refuse_others(content, known, source)
    try:
        return LinkGraph(
            name=_typed(content, "name", str, source),
            num_ranks=_typed(content, "num_ranks", int, source),
            wires=tuple(
                wire
                for at, entry in enumerate(_typed(content, "wires", list, source))
                for wire in _wires(entry, f"{source}: wires[{at}]")
            ),
        )
    except LinkGraphError as error:
        text = str(error)
        message = text if text.startswith(source) else f"{source}: {text}"
        raise LinkGraphError(message) from None


def load_graph(path: str | os.PathLike[str]) -> LinkGraph:
    """Returns the graph that a file describes.

    Raises:
        LinkGraphError: It cannot be read, or describes none.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        message = f"{path}: it cannot be read: {reason_of(error)}"
        raise LinkGraphError(message) from error
    return graph_from_json(text, str(path))


def _measured(links: dict[str, Any], source: str) -> LinkGraph:
    try:
        delay_s, bytes_per_s = (
            tuple(tuple(map(float, row)) for row in links[name])
            for name in ("delay_s", "bytes_per_s")
        )
        return from_matrix(_Links(delay_s, bytes_per_s))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        message = f"{source}: these are no measured links: {error}"
        raise LinkGraphError(message) from error


def _wires(entry: Any, where: str) -> list[Wire]:
    if not isinstance(entry, dict):
        message = f"{where}: a wire is an object, got {entry!r}"
        raise LinkGraphError(message)
    _refuse_others(entry, {*_WIRE, "both"}, where)
    entry = {"delay_s": 0.0, "both": False, **entry}
    values = {name: _typed(entry, name, kind, where) for name, kind in _WIRE.items()}
    found = [Wire(**values)]
    if _typed(entry, "both", bool, where):
        values["source"], values["target"] = values["target"], values["source"]
        found.append(Wire(**values))
    return found


def _refuse_others(content: dict[str, Any], known: set[str], where: str) -> None:
    others = sorted(set(content) - known)
    if others:
        message = (
            f"{where}: no field {others[0]!r}: there are {', '.join(sorted(known))}"
        )
        raise LinkGraphError(message)


def _typed(content: dict[str, Any], name: str, kind: type, where: str) -> Any:
    value = content.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        try:
            return float(value)  # type: ignore[arg-type]
        except OverflowError:
            message = f"{where}: {name} is too large"
            raise LinkGraphError(message) from None
    if type(value) is not kind:
        message = f"{where}: {name} must be a {kind.__name__}, got {value!r}"
        raise LinkGraphError(message)
    return value
