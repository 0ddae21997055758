"""Lists as `kubectl get` prints them: the server says which columns there are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import times
from drivetrain_cluster_double.kinds import Column, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["make_table", "metadata_only", "value_at"]

_NAME = Column("Name", "string", ".metadata.name")
_AGE = Column("Age", "date", ".metadata.creationTimestamp")


def value_at(item: Any, path: str) -> Any:
    """Returns what a simple JSON path finds, or None.

    Example:
        >>> item = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        >>> value_at(item, '.status.conditions[?(@.type=="Ready")].status')
        'True'
    """
    pattern = (
        r"""\.?([\w-]+)|\['([^']+)'\]|\[(\d+)\]|\[\?\(@\.(\w+)==["']([^"']*)["']\)\]"""
    )
    for part in re.finditer(pattern, path):
        field, quoted, index, key, wanted = part.groups()
        if field or quoted:
            item = item.get(field or quoted) if isinstance(item, dict) else None
        elif not isinstance(item, list):
            return None
        elif index is not None:
            item = item[int(index)] if int(index) < len(item) else None
        else:
            item = next((one for one in item if one.get(key) == wanted), None)
    return item


def make_table(
    kind: Kind,
    version: str,
    items: Iterable[dict[str, Any]],
    metadata: Mapping[str, Any],
    *,
    objects: str = "Metadata",
) -> dict[str, Any]:
    """Returns objects as a table.

    Args:
        kind: Of the objects.
        version: In which they are asked for.
        items: The objects.
        metadata: Of the list.
        objects: What of each object comes with its row: `Metadata`, `Object` or `None`.
    """
    columns = [_NAME, *kind.columns.get(version, (_AGE,))]
    definitions = [
        {
            "name": column.name,
            "type": "string" if column.type == "date" else column.type,
            "format": "name" if column is _NAME else "",
            "description": column.name,
            "priority": column.priority,
        }
        for column in columns
    ]
    rows = []
    for item in items:
        row: dict[str, Any] = {"cells": [_cell(item, column) for column in columns]}
        if objects != "None":
            row["object"] = item if objects == "Object" else metadata_only(item)
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(metadata),
        "columnDefinitions": definitions,
        "rows": rows,
    }


def metadata_only(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object of which only the metadata is told."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": item["metadata"],
    }


def _cell(item: dict[str, Any], column: Column) -> Any:
    if column.path.startswith("@"):
        return _SPECIAL[column.path](item)
    value = value_at(item, column.path)
    if column.type == "date" and isinstance(value, str):
        return _age(value)
    if column.type in {"integer", "number"}:
        return value
    if isinstance(value, dict | list):
        return str(value)
    if value is None:
        return "" if item["kind"] != "Service" else "<none>"
    return value if isinstance(value, str) else str(value).lower()


def _age(text: str) -> str:
    age_s = max(0, int((times.now() - times.read_time(text)).total_seconds()))
    for unit, size_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if age_s >= 2 * size_s:
            return f"{age_s // size_s}{unit}"
    return f"{age_s}s"


def _containers(item: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = item.get("status", {}).get("containerStatuses") or []
    return found


def _pod_ready(item: dict[str, Any]) -> str:
    num_ready = sum(bool(one.get("ready")) for one in _containers(item))
    return f"{num_ready}/{len(item['spec']['containers'])}"


def _pod_status(item: dict[str, Any]) -> str:
    status = item.get("status", {})
    if "deletionTimestamp" in item["metadata"]:
        return "Terminating"
    for one in _containers(item):
        for state in ("waiting", "terminated"):
            reason = one.get("state", {}).get(state, {}).get("reason")
            if reason:
                return str(reason)
    return str(status.get("reason") or status.get("phase", ""))


def _pod_restarts(item: dict[str, Any]) -> str:
    return str(sum(one.get("restartCount", 0) for one in _containers(item)))


def _node_status(item: dict[str, Any]) -> str:
    ready = value_at(item, '.status.conditions[?(@.type=="Ready")].status')
    text = "Ready" if ready == "True" else "NotReady"
    return (
        f"{text},SchedulingDisabled" if value_at(item, ".spec.unschedulable") else text
    )


def _involved(item: dict[str, Any]) -> str:
    about = item.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


_SPECIAL: dict[str, Callable[[dict[str, Any]], str]] = {
    "@ready": _pod_ready,
    "@status": _pod_status,
    "@restarts": _pod_restarts,
    "@node": _node_status,
    "@involved": _involved,
}
