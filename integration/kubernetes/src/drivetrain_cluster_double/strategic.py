"""Strategic merge patches: merge patches that know by which key lists of a kind merge."""

from __future__ import annotations

from typing import Any

from drivetrain_cluster_double.errors import bad_request

__all__ = ["strategic_patch"]

_DELETE, _SET_ORDER, _RETAIN = (
    "$deleteFromPrimitiveList/",
    "$setElementOrder/",
    "$retainKeys",
)


def strategic_patch(value: Any, patch: Any, schema: dict[str, Any] | None) -> Any:
    """Returns a value with a strategic merge patch applied; changes neither.

    Args:
        value: What there is.
        patch: What to change; `$patch`, `$retainKeys`, `$deleteFromPrimitiveList` and
            `$setElementOrder` are understood.
        schema: Of the value; lists whose schema has `x-strategic-key` merge by it, or as
            sets if it is empty.

    Example:
        >>> schema = {"properties": {"env": {"x-strategic-key": "name"}}}
        >>> there = {"env": [{"name": "A", "value": "1"}]}
        >>> strategic_patch(there, {"env": [{"name": "B", "value": "2"}]}, schema)
        {'env': [{'name': 'B', 'value': '2'}, {'name': 'A', 'value': '1'}]}
    """
    if not isinstance(patch, dict):
        return patch
    order = patch.get("$patch")
    if order == "delete":
        return None
    if order == "replace" or not isinstance(value, dict):
        return _plain(patch)
    merged = dict(value)
    retained = patch.get(_RETAIN)
    if retained is not None:
        merged = {key: kept for key, kept in merged.items() if key in retained}
    for key, change in patch.items():
        if key.startswith(_DELETE):
            name = key.removeprefix(_DELETE)
            merged[name] = [v for v in merged.get(name) or [] if v not in change]
        elif key.startswith("$"):
            continue
        elif change is None:
            merged.pop(key, None)
        else:
            inner = _child(schema, key)
            there = merged.get(key)
            if isinstance(change, list):
                ordered = patch.get(f"{_SET_ORDER}{key}")
                merged[key] = _merge_lists(there or [], change, inner, ordered)
            else:
                merged[key] = strategic_patch(there, change, inner)
    return merged


def _child(schema: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = ((schema or {}).get("properties") or {}).get(key)
    return found


def _plain(patch: Any) -> Any:
    """Returns a patch as a value: without its orders, and without what it removes."""
    if isinstance(patch, dict):
        return {
            key: _plain(value)
            for key, value in patch.items()
            if value is not None and not key.startswith("$")
        }
    if isinstance(patch, list):
        return [_plain(v) for v in patch if not _orders(v)]
    return patch


def _orders(item: Any) -> str | None:
    found: str | None = item.get("$patch") if isinstance(item, dict) else None
    return found


def _merge_lists(
    there: list[Any], patch: list[Any], schema: dict[str, Any] | None, order: Any
) -> list[Any]:
    key = (schema or {}).get("x-strategic-key")
    if key is None or any(_orders(item) == "replace" for item in patch):
        return [_plain(item) for item in patch if _orders(item) is None]
    if not key:
        merged = [*there, *(item for item in patch if item not in there)]
        return _in_order(merged, order, lambda item: item)
    inner = (schema or {}).get("items")
    merged, at = list(there), {item.get(key): n for n, item in enumerate(there)}
    added, removed = [], set()
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            message = (
                f"an element of the list has no {key!r}, by which it merges: {item}"
            )
            raise bad_request(message)
        name = item[key]
        if isinstance(name, dict | list):
            message = f"{key!r}, by which a list merges, is one value, got {name}"
            raise bad_request(message)
        if _orders(item) == "delete":
            removed.add(name)
        elif name in at:
            merged[at[name]] = strategic_patch(merged[at[name]], item, inner)
        else:
            added.append(_plain(item))
    # What is new comes first, unless the patch says how all are ordered.
    merged = [item for item in [*added, *merged] if item.get(key) not in removed]
    names = [item.get(key) for item in order] if isinstance(order, list) else None
    return _in_order(merged, names, lambda item: item.get(key))


def _in_order(merged: list[Any], names: Any, key: Any) -> list[Any]:
    if not isinstance(names, list):
        return merged
    place = {name: at for at, name in enumerate(names)}
    return sorted(merged, key=lambda item: place.get(key(item), len(place)))
