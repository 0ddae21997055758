"""Structural schemas: what an object of a kind may hold, and what is filled in."""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

from drivetrain_cluster_double.errors import Cause

_Schema = dict[str, Any]

NOT_DONE = (
    *("allOf", "anyOf", "oneOf", "not", "multipleOf", "minProperties", "maxProperties"),
    *("exclusiveMinimum", "exclusiveMaximum"),
)
"""Keywords of schemas that are not looked at, and so are refused."""

_KEEP = "x-kubernetes-preserve-unknown-fields"
_EITHER = "x-kubernetes-int-or-string"
_META = frozenset({"apiVersion", "kind", "metadata"})


def prune(value: Any, schema: _Schema, *, is_root: bool = True) -> Any:
    """Returns a value without the fields that its schema does not know.

    Example:
        >>> prune({"a": 1, "b": 2}, {"properties": {"a": {}}}, is_root=False)
        {'a': 1}
    """
    if isinstance(value, dict):
        is_root = is_root or bool(schema.get("x-kubernetes-embedded-resource"))
        kept = {}
        for key, inner in value.items():
            known = child(schema, key)
            if is_root and key in _META:
                kept[key] = inner
            elif known is not None:
                kept[key] = prune(inner, known, is_root=False)
            elif schema.get("additionalProperties") is True or schema.get(_KEEP):
                kept[key] = inner
        return kept
    if isinstance(value, list) and "items" in schema:
        return [prune(inner, schema["items"], is_root=False) for inner in value]
    return value


def child(schema: _Schema, key: str) -> _Schema | None:
    """Returns the schema of a field, or None if nothing is said of it."""
    rest = schema.get("additionalProperties")
    known: _Schema | None = (schema.get("properties") or {}).get(key)
    return known if known is not None else rest if isinstance(rest, dict) else None


def unknown_fields(value: Any, pruned: Any, path: str = "") -> Iterator[str]:
    """Yields the fields that `prune` has left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            where = f"{path}.{key}" if path else key
            if key not in pruned:
                yield where
            elif pruned[key] is not inner:
                yield from unknown_fields(inner, pruned[key], where)
    elif isinstance(value, list):
        for at, (inner, kept) in enumerate(zip(value, pruned, strict=True)):
            yield from unknown_fields(inner, kept, f"{path}[{at}]")


def default(value: Any, schema: _Schema) -> Any:
    """Returns a value with what its schema fills in; the value itself if that is nothing.

    Example:
        >>> default({}, {"properties": {"a": {"default": 1}}})
        {'a': 1}
    """
    if isinstance(value, dict):
        changed: dict[str, Any] = {}
        for key, inner in (schema.get("properties") or {}).items():
            there = value.get(key)
            if there is None and "default" in inner and not inner.get("nullable"):
                changed[key] = default(copy.deepcopy(inner["default"]), inner)
        for key, there in value.items():
            inner = child(schema, key)
            if key in changed or inner is None:
                continue
            if (filled := default(there, inner)) is not there:
                changed[key] = filled
        return {**value, **changed} if changed else value
    if isinstance(value, list) and "items" in schema:
        items = [default(inner, schema["items"]) for inner in value]
        is_same = all(a is b for a, b in zip(items, value, strict=True))
        return value if is_same else items
    return value


def validate(value: Any, schema: _Schema, path: str = "") -> Iterator[Cause]:
    """Yields what is wrong with a value.

    Args:
        value: What to look at.
        schema: What it may be.
        path: Where the value is, for messages.

    Example:
        >>> [cause.message for cause in validate(0, {"minimum": 1}, "spec.replicas")]
        ['Invalid value: 0: spec.replicas in body should be greater than or equal to 1']
    """
    wanted = "integer,string" if schema.get(_EITHER) else schema.get("type")
    if value is None and (schema.get("nullable") or not wanted):
        return
    if wanted and not any(_TYPES[one](value) for one in wanted.split(",")):
        found = next(name for name, fits in _TYPES.items() if fits(value))
        message = f'Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'
        yield Cause("FieldValueTypeInvalid", message, path)
        return
    if "enum" in schema and value not in schema["enum"]:
        listed = ", ".join(_shown(one) for one in schema["enum"])
        message = f"Unsupported value: {_shown(value)}: supported values: {listed}"
        yield Cause("FieldValueNotSupported", message, path)
    for reason, rule in _broken(value, schema):
        message = f"Invalid value: {_shown(value)}: {path} in body should {rule}"
        yield Cause(f"FieldValue{reason}", message, path)
    if isinstance(value, list):
        yield from _items(value, schema, path)
    elif isinstance(value, dict):
        yield from _fields(value, schema, path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: _is_number(v) and (isinstance(v, int) or v.is_integer()),
    "number": _is_number,
}


def _shown(value: Any) -> str:
    return '"object"' if isinstance(value, dict) else json.dumps(value)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


_SIZES = (
    (str, "Length", "TooLong", "chars"),
    (list, "Items", "TooMany", "items"),
)
_QUANTITY = r"[+-]?(\d+|\d+\.\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?"
_MICRO_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)"


def _broken(value: Any, schema: _Schema) -> Iterator[tuple[str, str]]:
    """Yields the rules that a value breaks by itself: a reason, and what it should."""
    for kind, name, reason, unit in _SIZES:
        if isinstance(value, kind):
            least, most = schema.get(f"min{name}", 0), schema.get(f"max{name}")
            if len(value) < least:
                yield "Invalid", f"have at least {least} {unit}"
            if most is not None and len(value) > most:
                yield reason, f"have at most {most} {unit}"
    form = schema.get("format", "")
    if isinstance(value, str):
        if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
            yield "Invalid", f"match '{schema['pattern']}'"
        if form == "date-time" and not _is_time(value):
            yield "Invalid", "be of type date-time"
        if form == "micro-time" and not re.fullmatch(_MICRO_TIME, value):
            yield "TypeInvalid", "be a time with microseconds"
        if form == "byte" and not _is_base64(value):
            yield "TypeInvalid", "be base64"
    if form == "quantity" and not re.fullmatch(_QUANTITY, str(value)):
        yield "TypeInvalid", f"match '^{_QUANTITY}$'"
    if not _is_number(value):
        return
    least, most = schema.get("minimum", value), schema.get("maximum", value)
    if value < least:
        yield "Invalid", f"be greater than or equal to {least}"
    if value > most:
        yield "Invalid", f"be less than or equal to {most}"
    if form == "int32" and not -(1 << 31) <= value < 1 << 31:
        yield "Invalid", "be a number of the format int32"


def _is_time(text: str) -> bool:
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _is_base64(text: str) -> bool:
    try:
        return base64.b64decode(text, validate=True) is not None
    except ValueError:
        return False


def _items(value: list[Any], schema: _Schema, path: str) -> Iterator[Cause]:
    keys = schema.get("x-kubernetes-list-map-keys")
    is_set = schema.get("x-kubernetes-list-type") == "set"
    seen: set[str] = set()
    for at, inner in enumerate(value):
        yield from validate(inner, schema.get("items") or {}, f"{path}[{at}]")
        part = (
            {k: inner.get(k) for k in keys}
            if keys and isinstance(inner, dict)
            else inner
        )
        shown = json.dumps(part, separators=(",", ":"), sort_keys=True)
        if (keys or is_set) and shown in seen:
            yield Cause(
                "FieldValueDuplicate", f"Duplicate value: {shown}", f"{path}[{at}]"
            )
        seen.add(shown)


def _fields(value: dict[str, Any], schema: _Schema, path: str) -> Iterator[Cause]:
    before = f"{path}." if path else ""
    for name in schema.get("required") or ():
        if name not in value:
            yield Cause("FieldValueRequired", "Required value", before + name)
    for key, inner in value.items():
        if (known := child(schema, key)) is not None:
            yield from validate(inner, known, before + key)
