"""Structural schemas: what an object of a kind may hold, and what is filled in."""

from __future__ import annotations

import copy
import json
import math
import re
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double.errors import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["default", "prune", "unknown_fields", "validate"]

_Schema = dict[str, Any]

_KEEP = "x-kubernetes-preserve-unknown-fields"
_EITHER = "x-kubernetes-int-or-string"
_EMBEDDED = "x-kubernetes-embedded-resource"
_META = frozenset({"apiVersion", "kind", "metadata"})


def prune(value: Any, schema: _Schema, *, is_root: bool = True) -> Any:
    """Returns a value without the fields that its schema does not know.

    Example:
        >>> prune({"a": 1, "b": 2}, {"properties": {"a": {}}}, is_root=False)
        {'a': 1}
    """
    if isinstance(value, dict):
        known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
        kept = {}
        for key, inner in value.items():
            if (is_root or schema.get(_EMBEDDED)) and key in _META:
                kept[key] = inner
            elif key in known:
                kept[key] = prune(inner, known[key], is_root=False)
            elif isinstance(rest, dict):
                kept[key] = prune(inner, rest, is_root=False)
            elif rest is True or schema.get(_KEEP):
                kept[key] = inner
        return kept
    if isinstance(value, list) and "items" in schema:
        return [prune(inner, schema["items"], is_root=False) for inner in value]
    return value


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
        known = schema.get("properties") or {}
        for key, inner in known.items():
            there = value.get(key)
            is_missing = key not in value or (
                there is None and not inner.get("nullable") and "default" in inner
            )
            if is_missing and "default" not in inner:
                continue
            given = copy.deepcopy(inner["default"]) if is_missing else there
            filled = default(given, inner)
            if is_missing or filled is not there:
                changed[key] = filled
        rest = schema.get("additionalProperties")
        if isinstance(rest, dict):
            for key, there in value.items():
                if key not in known and (filled := default(there, rest)) is not there:
                    changed[key] = filled
        return {**value, **changed} if changed else value
    if isinstance(value, list) and "items" in schema:
        filled_items = [default(inner, schema["items"]) for inner in value]
        is_same = all(a is b for a, b in zip(filled_items, value, strict=True))
        return value if is_same else filled_items
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
    if value is None:
        wanted = "integer,string" if schema.get(_EITHER) else schema.get("type")
        if not schema.get("nullable") and wanted:
            yield _of_type(path, "null", wanted)
        return
    wrong = _wrong_type(value, schema)
    if wrong:
        yield _of_type(path, _shown(value), wrong)
        return
    if "enum" in schema and value not in schema["enum"]:
        listed = ", ".join(_shown(one) for one in schema["enum"])
        message = f"Unsupported value: {_shown(value)}: supported values: {listed}"
        yield Cause("FieldValueNotSupported", message, path)
    if isinstance(value, str):
        yield from _text(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, schema, path)
    elif isinstance(value, list):
        yield from _items(value, schema, path)
    elif isinstance(value, dict):
        yield from _fields(value, schema, path)
    yield from _combined(value, schema, path)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "integer": lambda v: (
        (isinstance(v, int) and not isinstance(v, bool))
        or (isinstance(v, float) and v.is_integer())
    ),
}


def _wrong_type(value: Any, schema: _Schema) -> str | None:
    if schema.get(_EITHER):
        fits = _TYPES["integer"](value) or isinstance(value, str)
        return None if fits else "integer,string"
    wanted: str | None = schema.get("type")
    return wanted if wanted and not _TYPES[wanted](value) else None


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _named(value: Any) -> str:
    for name in ("object", "array", "string", "boolean", "integer", "number"):
        if _TYPES[name](value):
            return name
    return "null"


def _of_type(path: str, shown: str, wanted: str) -> Cause:
    found = _named(json.loads(shown)) if shown != "null" else "null"
    message = f'Invalid value: "{found}": {path} in body must be of type {wanted}: '
    return Cause("FieldValueTypeInvalid", f'{message}"{found}"', path)


def _bad(path: str, value: Any, rule: str, reason: str = "FieldValueInvalid") -> Cause:
    message = f"Invalid value: {_shown(value)}: {path} in body should {rule}"
    return Cause(reason, message, path)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _text(value: str, schema: _Schema, path: str) -> Iterator[Cause]:
    if len(value) < schema.get("minLength", 0):
        rule = f"be at least {schema['minLength']} chars long"
        yield _bad(path, value, rule)
    if len(value) > schema.get("maxLength", math.inf):
        message = f"Too long: may not be more than {schema['maxLength']} bytes"
        yield Cause("FieldValueTooLong", message, path)
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        yield _bad(path, value, f"match '{schema['pattern']}'")
    if schema.get("format") == "date-time":
        try:
            datetime.fromisoformat(value)
        except ValueError:
            message = f"{path} in body must be of type date-time: {_shown(value)}"
            yield Cause(
                "FieldValueInvalid", f"Invalid value: {_shown(value)}: {message}", path
            )


def _number(value: float, schema: _Schema, path: str) -> Iterator[Cause]:
    if "minimum" in schema:
        least, strict = schema["minimum"], schema.get("exclusiveMinimum")
        if value < least or (strict and value == least):
            yield _bad(
                path,
                value,
                f"be greater than {'' if strict else 'or equal to '}{least}",
            )
    if "maximum" in schema:
        most, strict = schema["maximum"], schema.get("exclusiveMaximum")
        if value > most or (strict and value == most):
            yield _bad(
                path, value, f"be less than {'' if strict else 'or equal to '}{most}"
            )
    bits = {"int32": 31, "int64": 63}.get(schema.get("format", ""))
    if bits and not -(1 << bits) <= value < 1 << bits:
        yield _bad(path, value, f"be a number of the format {schema['format']}")
    if schema.get("multipleOf") and value % schema["multipleOf"]:
        yield _bad(path, value, f"be a multiple of {schema['multipleOf']}")


def _items(value: list[Any], schema: _Schema, path: str) -> Iterator[Cause]:
    if len(value) < schema.get("minItems", 0):
        yield _bad(path, len(value), f"have at least {schema['minItems']} items")
    if len(value) > schema.get("maxItems", math.inf):
        message = (
            f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
        )
        yield Cause("FieldValueTooMany", message, path)
    if "items" in schema:
        for at, inner in enumerate(value):
            yield from validate(inner, schema["items"], f"{path}[{at}]")
    keys = schema.get("x-kubernetes-list-map-keys")
    is_set = schema.get("x-kubernetes-list-type") == "set" or schema.get("uniqueItems")
    seen: set[str] = set()
    for at, inner in enumerate(value) if keys or is_set else ():
        part = (
            {k: inner.get(k) for k in keys}
            if keys and isinstance(inner, dict)
            else inner
        )
        if (shown := _shown(part)) in seen:
            message = f"Duplicate value: {shown}"
            yield Cause("FieldValueDuplicate", message, f"{path}[{at}]")
        seen.add(shown)


def _fields(value: dict[str, Any], schema: _Schema, path: str) -> Iterator[Cause]:
    for name in schema.get("required") or ():
        if name not in value:
            where = f"{path}.{name}" if path else name
            yield Cause("FieldValueRequired", "Required value", where)
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, inner in value.items():
        where = f"{path}.{key}" if path else key
        if key in known:
            yield from validate(inner, known[key], where)
        elif isinstance(rest, dict):
            yield from validate(inner, rest, where)
    if len(value) < schema.get("minProperties", 0):
        yield _bad(
            path, len(value), f"have at least {schema['minProperties']} properties"
        )
    if len(value) > schema.get("maxProperties", math.inf):
        message = (
            f"Too many: {len(value)}: must have at most {schema['maxProperties']} items"
        )
        yield Cause("FieldValueTooMany", message, path)


def _combined(value: Any, schema: _Schema, path: str) -> Iterator[Cause]:
    for part in schema.get("allOf") or ():
        yield from validate(value, part, path)
    for name, most in (("anyOf", math.inf), ("oneOf", 1)):
        parts = schema.get(name) or ()
        num_fit = sum(not any(validate(value, part, path)) for part in parts)
        if parts and not 1 <= num_fit <= most:
            count = "at least one" if name == "anyOf" else "one and only one"
            message = f'Invalid value: "": {path} in body must validate {count} schema ({name})'
            yield Cause("FieldValueInvalid", message, path)
    refused = schema.get("not")
    if refused is not None and not any(validate(value, refused, path)):
        message = (
            f'Invalid value: "": {path} in body must not validate the schema (not)'
        )
        yield Cause("FieldValueInvalid", message, path)
