"""Server-side apply: what a manager wants is merged into what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double.errors import Cause, StatusError
from drivetrain_cluster_double.ownership import (
    Fields,
    Manager,
    Owner,
    common,
    difference,
    fields_of,
    list_key,
    minus,
    owned_part,
    paths,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Applied", "apply"]

_Schema = dict[str, Any]


class Applied(NamedTuple):
    """What `apply` has made.

    Attributes:
        item: The object.
        managers: Who owns what in it.
    """

    item: dict[str, Any]
    managers: tuple[Manager, ...]


def apply(
    live: dict[str, Any],
    wanted: dict[str, Any],
    managers: Sequence[Manager],
    owner: Owner,
    *,
    schema: _Schema,
    api_version: str,
    time: str,
    is_forced: bool = False,
) -> Applied:
    """Merges what a manager wants into an object.

    What the manager applied before and wants no more is removed, unless somebody else owns
    it too.

    Args:
        live: The object; its names alone, if it is new.
        wanted: All that the manager wants.
        managers: Who owns what.
        owner: The manager.
        schema: Of the object.
        api_version: Of the object.
        time: Now, as RFC 3339 has it.
        is_forced: Whether to take fields from their owners rather than to refuse.

    Raises:
        StatusError: A field that would change belongs to others.
    """
    mine = owned_part(wanted)
    merged: dict[str, Any] = _merge(live, mine, schema)
    new = fields_of(mine, schema)
    changed, _ = difference(owned_part(live), owned_part(merged), schema)
    others = [one for one in managers if one.owner != owner]
    if changed:
        clashes = [(one, common(changed, one.fields)) for one in others]
        clashes = [(one, fields) for one, fields in clashes if fields]
        if clashes and not is_forced:
            raise _conflict(clashes)
        kept = ((one, minus(one.fields, changed)) for one in others)
        others = [one._replace(fields=fields) for one, fields in kept if fields]
    before = next((one for one in managers if one.owner == owner), None)
    if before is not None:
        gone = minus(before.fields, new)
        for one in others:
            gone = minus(gone, one.fields)
        if gone:
            merged = _without(merged, gone, schema)
    is_same = before is not None and before.fields == new and merged == live
    own = before if is_same else None
    own = own or Manager(owner, api_version, time, new)
    return Applied(merged, (*others, own) if new else tuple(others))


def _conflict(clashes: Sequence[tuple[Manager, Fields]]) -> StatusError:
    causes, texts = [], []
    for one, fields in clashes:
        how = f' with subresource "{one.owner.subresource}"' * bool(
            one.owner.subresource
        )
        who = f'conflict with "{one.owner.name}"{how}'
        if one.owner.operation == "Update":
            who += f" using {one.api_version}"
        found = sorted(paths(fields))
        causes += [Cause("FieldManagerConflict", who, path) for path in found]
        texts += [f"{who}: {path}" for path in found]
    some = "conflict" if len(texts) == 1 else "conflicts"
    message = f"Apply failed with {len(texts)} {some}: {'; '.join(texts)}"
    details = {"causes": [cause._asdict() for cause in causes]}
    return StatusError(409, "Conflict", message, details=details)


def _merge(live: Any, wanted: Any, schema: _Schema | None) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict):
        if (schema or {}).get("x-kubernetes-map-type") == "atomic":
            return wanted
        merged = dict(live)
        for key, value in wanted.items():
            merged[key] = _merge(live.get(key), value, _part(schema, key))
        return merged
    if isinstance(wanted, list) and isinstance(live, list):
        there = {list_key(item, schema): item for item in live}
        if None not in there:
            items = (schema or {}).get("items")
            for item in wanted:
                key = list_key(item, schema)
                there[key] = _merge(there.get(key), item, items)
            return list(there.values())
    return wanted


def _part(schema: _Schema | None, key: str) -> _Schema | None:
    known = ((schema or {}).get("properties") or {}).get(key)
    rest = (schema or {}).get("additionalProperties")
    found: _Schema | None = known or (rest if isinstance(rest, dict) else None)
    return found


def _without(value: Any, gone: Fields, schema: _Schema | None) -> Any:
    """Returns a value without some fields, and without what they leave empty."""
    if isinstance(value, dict):
        kept = {}
        for key, inner in value.items():
            fields = gone.get(f"f:{key}")
            if fields is None:
                kept[key] = inner
            elif fields and (left := _without(inner, fields, _part(schema, key))):
                kept[key] = left
        return kept
    if isinstance(value, list):
        items, found = (schema or {}).get("items"), []
        for inner in value:
            fields = gone.get(str(list_key(inner, schema)))
            if fields is None:
                found.append(inner)
            elif fields and "." not in fields:
                found.append(_without(inner, fields, items))
        return found
    return value
