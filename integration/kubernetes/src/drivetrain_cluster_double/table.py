"""Lists as `kubectl get` prints them: the server says which columns there are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from drivetrain_cluster_double import times
from drivetrain_cluster_double.kinds import Column, Kind
from drivetrain_cluster_double.store import Row

_NAME = Column("Name", "string", ".metadata.name")
_AGE = Column("Age", "date", ".metadata.creationTimestamp")
_PART = re.compile(
    r"""\.?([\w-]+)|\['([^']+)'\]|\[(\d+)\]|\[\?\(@\.(\w+)==["']([^"']*)["']\)\]"""
)


def value_at(item: Any, path: str) -> Any:
    """Returns what a simple JSON path finds, or None.

    Example:
        >>> item = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        >>> value_at(item, '.status.conditions[?(@.type=="Ready")].status')
        'True'
    """
    for field, quoted, index, key, wanted in _PART.findall(path):
        if field or quoted:
            item = item.get(field or quoted) if isinstance(item, dict) else None
        elif not isinstance(item, list):
            return None
        elif index:
            item = item[int(index)] if int(index) < len(item) else None
        else:
            item = next((one for one in item if one.get(key) == wanted), None)
    return item


def make_table(
    kind: Kind,
    version: str,
    rows: Iterable[Row],
    metadata: Mapping[str, Any],
    query: Mapping[str, str],
) -> dict[str, Any]:
    """Returns objects as a table.

    Args:
        kind: Of the objects.
        version: In which they are asked for.
        rows: The objects.
        metadata: Of the list.
        query: Of the call: `includeObject` says what of each object comes with its row.
    """
    columns = [_NAME, *kind.columns.get(version, (_AGE,))]
    definitions = [
        {
            "name": one.name,
            "type": "string" if one.type == "date" else one.type,
            "format": "name" if one is _NAME else "",
            "description": one.name,
            "priority": one.priority,
        }
        for one in columns
    ]
    found = []
    for row in rows:
        item = row.shown(kind.api_version(version))
        if query.get("includeObject") != "Object":
            names = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            shown = {**names, "metadata": item["metadata"]}
        else:
            shown = item
        cells = [_cell(value_at(item, one.path), one) for one in columns]
        found.append({"cells": cells, "object": shown})
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(metadata),
        "columnDefinitions": definitions,
        "rows": found,
    }


def _cell(value: Any, column: Column) -> Any:
    if column.type == "date" and isinstance(value, str):
        age_s = int((times.now() - datetime.fromisoformat(value)).total_seconds())
        for unit, size_s in (("d", 86400), ("h", 3600), ("m", 60)):
            if age_s >= 2 * size_s:
                return f"{age_s // size_s}{unit}"
        return f"{max(age_s, 0)}s"
    if value is None or isinstance(value, str) or column.type in {"integer", "number"}:
        return value
    return str(value)
