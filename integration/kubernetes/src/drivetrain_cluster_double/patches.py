"""Patches: JSON patches, merge patches, and strategic ones of kinds that lists merge in."""

from __future__ import annotations

from typing import Any

import jsonpatch

from drivetrain_cluster_double.errors import StatusError, bad_request, not_done

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"
# By what elements of lists of Kubernetes' own kinds are found; other lists are replaced.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "conditions": "type",
    "ownerReferences": "uid",
    "imagePullSecrets": "name",
}


def merge_patch(value: Any, patch: Any) -> Any:
    """Returns a value with a merge patch of RFC 7396 applied; changes neither.

    Example:
        >>> merge_patch({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
        {'b': {'c': 2, 'd': 3}}
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), change)
    return merged


def merge_difference(old: Any, new: Any) -> dict[str, Any]:
    """Returns the merge patch that makes one object of another.

    Example:
        >>> merge_difference({"a": 1, "b": 2}, {"b": {"c": 3}})
        {'a': None, 'b': {'c': 3}}
    """
    found: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            found[key] = merge_difference(old[key], value)
        else:
            found[key] = value
    return found


def json_patch(value: Any, operations: Any) -> Any:
    """Returns a value with a JSON patch of RFC 6902 applied; changes neither.

    Raises:
        StatusError: It is no list of operations (400), or cannot be done (422).

    Example:
        >>> json_patch({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}])
        {'a': [1, 2, 3]}
    """
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    try:
        return jsonpatch.apply_patch(value, operations)
    except (
        jsonpatch.JsonPatchException,
        jsonpatch.JsonPointerException,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        why = "the server rejected our request due to an error in our request"
        raise StatusError(422, "Invalid", f"{why}: {error}") from error


def strategic_patch(value: Any, patch: Any) -> Any:
    """Returns a value with a strategic merge patch applied; changes neither.

    Raises:
        StatusError: An element of a list lacks the key by which it is found, or the patch
            has orders, as `$patch` (501).

    Example:
        >>> there = {"env": [{"name": "A", "value": "1"}]}
        >>> strategic_patch(there, {"env": [{"name": "B", "value": "2"}]})
        {'env': [{'name': 'A', 'value': '1'}, {'name': 'B', 'value': '2'}]}
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if key.startswith("$"):
            raise not_done(f"a strategic merge patch with {key}")
        if change is None:
            merged.pop(key, None)
        elif isinstance(change, list) and key in _KEYS:
            found = {_name(one, _KEYS[key]): one for one in merged.get(key) or ()}
            for one in change:
                name = _name(one, _KEYS[key])
                found[name] = strategic_patch(found.get(name), one)
            merged[key] = list(found.values())
        else:
            merged[key] = strategic_patch(merged.get(key), change)
    return merged


def _name(item: Any, key: str) -> str:
    if not isinstance(item, dict) or not isinstance(item.get(key), str):
        raise bad_request(f"map: {item} does not contain declared merge key: {key}")
    return str(item[key])
