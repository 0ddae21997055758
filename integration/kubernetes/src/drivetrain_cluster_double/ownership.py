"""Which field of an object was set by whom: `metadata.managedFields`.

A set of fields is kept as it is shown: nested dictionaries, whose keys are `f:name` for a
field, `k:{"name":"x"}` for an element of a list that merges by keys, `v:"x"` for one of a
set, and `.` for the element itself. An empty dictionary is a field that is owned as a
whole.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Fields",
    "Manager",
    "Owner",
    "common",
    "difference",
    "fields_of",
    "list_key",
    "minus",
    "note_change",
    "owned_part",
    "paths",
    "union",
]

Fields = dict[str, Any]
"""A set of fields."""

_SYSTEM = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
        "generateName",
    }
)


class Owner(NamedTuple):
    """Who changes an object.

    Attributes:
        name: Of the field manager.
        operation: `Update` or `Apply`.
        subresource: Through which it is changed, as `status`; empty for the object.
    """

    name: str
    operation: str = "Update"
    subresource: str = ""


class Manager(NamedTuple):
    """What somebody has set.

    Attributes:
        owner: Who.
        api_version: In whose terms.
        time: When it last changed, as RFC 3339 has it.
        fields: Which fields.
    """

    owner: Owner
    api_version: str
    time: str
    fields: Fields

    def entry(self) -> dict[str, Any]:
        """Returns it as an entry of `metadata.managedFields`."""
        found = {
            "manager": self.owner.name,
            "operation": self.owner.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields,
        }
        if self.owner.subresource:
            found["subresource"] = self.owner.subresource
        return found


def owned_part(item: dict[str, Any]) -> dict[str, Any]:
    """Returns what of an object can be owned: without its names and the server's fields."""
    found = {key: v for key, v in item.items() if key not in {"apiVersion", "kind"}}
    metadata = {k: v for k, v in item.get("metadata", {}).items() if k not in _SYSTEM}
    found.pop("metadata", None)
    return {"metadata": metadata, **found} if metadata else found


def list_key(item: Any, schema: dict[str, Any] | None) -> str | None:
    """Returns the name of an element of a list, or None if the list is owned as a whole.

    Args:
        item: The element.
        schema: Of the list.
    """
    match (schema or {}).get("x-kubernetes-list-type"):
        case "map" if isinstance(item, dict):
            names = (schema or {})["x-kubernetes-list-map-keys"]
            given = {name: item[name] for name in sorted(names) if name in item}
            return f"k:{json.dumps(given, separators=(',', ':'))}"
        case "set":
            return f"v:{json.dumps(item, separators=(',', ':'))}"
    return None


def _inner(schema: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
    known = (schema or {}).get("properties") or {}
    rest = (schema or {}).get("additionalProperties")
    found: dict[str, Any] | None = known.get(key)
    return found if found is not None else (rest if isinstance(rest, dict) else None)


def _children(
    value: Any, schema: dict[str, Any] | None
) -> dict[str, tuple[Any, dict[str, Any] | None]] | None:
    """Returns the parts of a value that are owned each for itself, by their names."""
    if isinstance(value, dict):
        if (schema or {}).get("x-kubernetes-map-type") == "atomic":
            return None
        return {f"f:{k}": (v, _inner(schema, k)) for k, v in value.items()}
    if isinstance(value, list) and (schema or {}).get("x-kubernetes-list-type") in {
        "map",
        "set",
    }:
        items = (schema or {}).get("items")
        return {str(list_key(v, schema)): (v, items) for v in value}
    return None


def fields_of(value: Any, schema: dict[str, Any] | None) -> Fields:
    """Returns the fields that a value sets.

    Example:
        >>> fields_of({"spec": {"replicas": 2, "names": ["a"]}}, None)
        {'f:spec': {'f:replicas': {}, 'f:names': {}}}
    """
    parts = _children(value, schema)
    found = {k: fields_of(v, inner) for k, (v, inner) in (parts or {}).items()}
    for key, inner in found.items():
        if key.startswith("k:"):
            found[key] = {".": {}, **inner}
    return found


def difference(
    old: Any, new: Any, schema: dict[str, Any] | None
) -> tuple[Fields | None, Fields | None]:
    """Returns the fields that were set or changed, and those that were removed.

    None stands for no fields: an empty set of fields is the value as a whole.
    """
    if old is new or old == new:
        return None, None
    before, after = _children(old, schema), _children(new, schema)
    if before is None or after is None:
        return fields_of(new, schema), None
    changed: Fields = {}
    removed: Fields = {}
    for key, (value, inner) in after.items():
        if key not in before:
            changed[key] = fields_of(value, inner)
            if key.startswith("k:"):
                changed[key] = {".": {}, **changed[key]}
            continue
        set_here, gone_here = difference(before[key][0], value, inner)
        if set_here is not None:
            changed[key] = set_here
        if gone_here is not None:
            removed[key] = gone_here
    for key, (value, inner) in before.items():
        if key not in after:
            removed[key] = fields_of(value, inner)
            if key.startswith("k:"):
                removed[key] = {".": {}, **removed[key]}
    return changed or None, removed or None


def union(one: Fields, other: Fields) -> Fields:
    """Returns the fields of both sets."""
    found = dict(one)
    for key, inner in other.items():
        found[key] = union(found[key], inner) if key in found else inner
    return found


def minus(one: Fields, other: Fields) -> Fields:
    """Returns the fields of one set that are not in another."""
    found: Fields = {}
    for key, inner in one.items():
        taken = other.get(key)
        if taken is None or (taken and not inner):
            found[key] = inner
        elif taken and (left := minus(inner, taken)):
            found[key] = left
    return found


def common(one: Fields, other: Fields) -> Fields:
    """Returns the fields that are in both sets."""
    found: Fields = {}
    for key, inner in one.items():
        if key not in other or key == ".":
            continue
        if not inner or not other[key]:
            found[key] = {}
        elif both := common(inner, other[key]):
            found[key] = both
    return found


def paths(fields: Fields, path: str = "") -> Iterator[str]:
    """Yields the fields of a set as people write them: `.spec.containers[name="a"].image`."""
    for key, inner in fields.items():
        kind, _, name = key.partition(":")
        shown = f".{name}"
        if kind == "k":
            pairs = json.loads(name).items()
            shown = f"[{','.join(f'{k}={json.dumps(v)}' for k, v in pairs)}]"
        elif kind == "v":
            shown = f"[={name}]"
        if inner:
            yield from paths(inner, path + shown)
        elif key != ".":
            yield path + shown


def note_change(
    managers: Iterable[Manager],
    owner: Owner,
    change: tuple[Fields | None, Fields | None],
    *,
    api_version: str,
    time: str,
) -> tuple[Manager, ...]:
    """Returns who owns what after an update.

    Args:
        managers: Who owned what before.
        owner: Who has made the update.
        change: What `difference` says of it.
        api_version: In whose terms.
        time: When.
    """
    changed, removed = change[0] or {}, change[1] or {}
    if not changed and not removed:
        return tuple(managers)
    taken = union(changed, removed)
    found, own = [], changed
    for one in managers:
        if one.owner == owner:
            own = union(minus(one.fields, removed), changed)
        elif left := minus(one.fields, taken):
            found.append(one._replace(fields=left))
    if own:
        found.append(Manager(owner, api_version, time, own))
    return tuple(found)
