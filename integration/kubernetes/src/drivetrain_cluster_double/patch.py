"""Patches that know nothing of the object's kind: JSON patches and merge patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double.errors import StatusError, bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["json_patch", "merge_patch"]


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


def json_patch(value: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """Returns a value with a JSON patch of RFC 6902 applied; changes neither.

    Raises:
        StatusError: An operation cannot be read (400), or cannot be done (422).

    Example:
        >>> json_patch({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}])
        {'a': [1, 2, 3]}
    """
    if not isinstance(operations, list):
        message = "a JSON patch is a list of operations"
        raise bad_request(message)
    for one in operations:
        try:
            name, path = one["op"], _split(one["path"])
            match name:
                case "add" | "replace":
                    value = _set(value, path, one["value"], is_new=name == "add")
                case "remove":
                    value = _remove(value, path)
                case "move" | "copy":
                    source = _split(one["from"])
                    found = _get(value, source)
                    value = _remove(value, source) if name == "move" else value
                    value = _set(value, path, found, is_new=True)
                case "test":
                    found = _get(value, path)
                    if found != one.get("value"):
                        message = f"testing path {one['path']} failed"
                        raise _undone(message)
                case _:
                    message = f"unknown operation {name!r} of a JSON patch"
                    raise bad_request(message)
        except (KeyError, TypeError) as error:
            message = f"this operation of a JSON patch is not whole: {one}"
            raise bad_request(message) from error
    return value


def _undone(message: str) -> StatusError:
    text = f"the server rejected our request due to an error in our request: {message}"
    return StatusError(422, "Invalid", text)


def _split(path: Any) -> list[str]:
    if not isinstance(path, str) or (path and not path.startswith("/")):
        message = f"a path of a JSON patch begins with '/', got {path!r}"
        raise bad_request(message)
    return [p.replace("~1", "/").replace("~0", "~") for p in path.split("/")[1:]]


def _index(values: list[Any], part: str, *, is_new: bool = False) -> int:
    if part == "-" and is_new:
        return len(values)
    at = int(part) if part.isdigit() else -1
    if not 0 <= at < len(values) + is_new:
        message = f"there is no index {part!r} in a list of {len(values)}"
        raise _undone(message)
    return at


def _get(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        if isinstance(value, list):
            value = value[_index(value, part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            message = f"there is no {part!r}"
            raise _undone(message)
    return value


def _set(value: Any, path: Sequence[str], new: Any, *, is_new: bool) -> Any:
    if not path:
        return new
    part, rest = path[0], path[1:]
    if isinstance(value, list):
        at, copy = _index(value, part, is_new=is_new and not rest), list(value)
        if rest:
            copy[at] = _set(copy[at], rest, new, is_new=is_new)
        elif is_new:
            copy.insert(at, new)
        else:
            copy[at] = new
        return copy
    if not isinstance(value, dict) or (part not in value and (rest or not is_new)):
        message = f"there is no {part!r}"
        raise _undone(message)
    return {**value, part: _set(value.get(part), rest, new, is_new=is_new)}


def _remove(value: Any, path: Sequence[str]) -> Any:
    if not path:
        message = "the whole object cannot be removed"
        raise _undone(message)
    part, rest = path[0], path[1:]
    if isinstance(value, list):
        at = _index(value, part)
        inner = [_remove(value[at], rest)] if rest else []
        return [*value[:at], *inner, *value[at + 1 :]]
    if not isinstance(value, dict) or part not in value:
        message = f"there is no {part!r}"
        raise _undone(message)
    if rest:
        return {**value, part: _remove(value[part], rest)}
    return {key: kept for key, kept in value.items() if key != part}
