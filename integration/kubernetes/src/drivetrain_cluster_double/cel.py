"""Rules of custom resources, in the Common Expression Language.

The language itself is a library's, which does not look at types before a rule runs. So a
rule is tried on an object that has all that its schema knows, and the fields that it names
are looked up. What Kubernetes adds to the language is not done (501).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import cel

from drivetrain_cluster_double.errors import Cause, not_done, wrong
from drivetrain_cluster_double.schema import child

_Schema = dict[str, Any]

_RULES = "x-kubernetes-validations"
_ABSENT: Any = object()
# The library raises whatever a function of Python's raises.
_ERRORS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
_ADDED = re.compile(
    r"\.?\b(isSorted|sum|min|max|indexOf|lastIndexOf|lowerAscii|upperAscii|trim|split|join"
    r"|replace|substring|find|findAll|charAt|quantity|isQuantity|url|isURL|ip|isIP|cidr"
    r"|format|orValue|sets\.\w+)\("
)
_TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_PATH = re.compile(
    r"(?<![\w.])(?:self|oldSelf)((?:\.\w+)*)(?![\w(]|\.\w)|"
    r"(?<![\w.])(?:self|oldSelf)((?:\.\w+)*)\.\w+\("
)
_OPERAND = rf"((?<![\w.])(?:self|oldSelf)(?:\.\w+)+(?!\w*\()|{_TEXT}|\b\d+\b|\btrue\b|\bfalse\b)"
_COMPARED = re.compile(rf"{_OPERAND}\s*([=!]=|[<>]=?)\s*{_OPERAND}(?!\s*[-+*/%.\w(])")
_LOOP = re.compile(
    r"\b(?:self|oldSelf)((?:\.\w+)*)\.(?:all|exists|exists_one|map|filter)\("
)
_SAMPLES = {"string": "a", "integer": 1, "number": 1.0, "boolean": True}
_METADATA = {"properties": {n: {"type": "string"} for n in ("name", "generateName")}}


class _Place(NamedTuple):
    """A value, what it was before, and its schema."""

    value: Any
    before: Any
    schema: _Schema
    path: str


def rule_causes(schema: _Schema, path: str) -> Iterator[Cause]:
    """Yields what is wrong with the rules of a schema.

    Args:
        schema: Of a version of a definition, whose form is right.
        path: Where the schema is, for messages.

    Raises:
        StatusError: A rule uses what Kubernetes adds to the language (501).
    """
    parts = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    known = {**parts, "metadata": _METADATA}
    properties = {**known, **(schema.get("properties") or {}), "metadata": _METADATA}
    yield from _rule_causes({**schema, "properties": properties}, path, path)


def _rule_causes(schema: _Schema, path: str, root: str) -> Iterator[Cause]:
    for at, rule in enumerate(schema.get(_RULES) or ()):
        where, text = f"{path}.{_RULES}[{at}]", rule.get("rule", "")
        if why := _wrong(text, schema):
            yield wrong("Invalid", f"{where}.rule", f"{text!r}: {why}")
        elif _is_costly(text, schema):
            why = "estimated rule cost exceeds budget"
            yield from [wrong("Forbidden", f"{where}.rule", why)] * 2
            yield wrong("Forbidden", root, why)
        if "\n" in rule.get("message", ""):
            yield wrong("Invalid", f"{where}.message", "must not contain line breaks")
        if "messageExpression" in rule:
            raise not_done("a rule with messageExpression")
        if _schema_at(schema, rule.get("fieldPath", "")) is None:
            yield wrong(
                "Invalid", f"{where}.fieldPath", "does not refer to a valid field"
            )
    for key, inner in (schema.get("properties") or {}).items():
        yield from _rule_causes(inner, f"{path}.properties[{key}]", root)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _rule_causes(schema[key], f"{path}.{key}", root)


def _schema_at(schema: _Schema, path: str) -> _Schema | None:
    found: _Schema | None = schema
    for part in path.split(".")[1:]:
        found = child(found, part) if found is not None else None
    return found


def _type_of(operand: str, schema: _Schema) -> str | None:
    """Returns the type of a field or of a literal, or None if it is not known."""
    if operand.startswith(("self.", "oldSelf.")):
        return (_schema_at(schema, operand) or {}).get("type")
    if operand in {"true", "false"}:
        return "boolean"
    return "integer" if operand.isdigit() else "string"


def _wrong(text: str, schema: _Schema) -> str | None:
    """Returns why an expression does not compile, or None."""
    bare = re.sub(_TEXT, "''", text)
    if added := _ADDED.search(bare):
        raise not_done(f"the function {added[1]} in a rule of a definition")
    for path, called in _PATH.findall(bare):
        if _schema_at(schema, path or called) is None:
            return f"compilation failed: undefined field {(path or called)!r}"
    for left, sign, right in _COMPARED.findall(text):
        types = _type_of(left, schema), _type_of(right, schema)
        if (
            None not in types
            and types[0] != types[1]
            and set(types) != {"integer", "number"}
        ):
            return (
                f"compilation failed: found no matching overload for {sign} of {types}"
            )
    sample = _sample(schema)
    try:
        found = _run(text, {"self": sample, "oldSelf": sample})
    except (TypeError, RuntimeError, ValueError) as error:
        return f"compilation failed: {error}".replace("\n", " ")
    except KeyError as error:
        key = str(error.args[0])
        is_field = re.search(rf"\.{re.escape(key)}\b", bare)
        return f"compilation failed: undefined field {key!r}" if is_field else None
    except _ERRORS:
        # What depends on values says nothing of types.
        return None
    is_bool = isinstance(found, bool)
    return None if is_bool else f"must evaluate to a bool, got {type(found).__name__}"


def _sample(schema: _Schema) -> Any:
    """Returns a value that has all that its schema knows."""
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        return 1
    if kind == "array":
        return [_sample(schema["items"])]
    if kind in _SAMPLES:
        return schema["enum"][0] if schema.get("enum") else _SAMPLES[kind]
    rest = schema.get("additionalProperties")
    if isinstance(rest, dict):
        return {"key": _sample(rest)}
    return {
        key: _sample(inner) for key, inner in (schema.get("properties") or {}).items()
    }


def _is_costly(text: str, schema: _Schema) -> bool:
    """Whether a rule goes through lists of any length inside of others."""
    loops = []
    for one in _LOOP.finditer(text):
        end, depth = one.end(), 1
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if "maxItems" not in (_schema_at(schema, one[1]) or {}):
            loops.append((one.start(), end))
    return any(a < b < end for a, end in loops for b, _ in loops)


def broken_rules(
    value: Any, before: Any, schema: _Schema, path: str = ""
) -> Iterator[Cause]:
    """Yields the rules that a value breaks.

    Args:
        value: An object that its schema otherwise allows.
        before: What it was; None when it is created.
        schema: Of the value.
        path: Where the value is, for messages.
    """
    old = _ABSENT if before is None else before
    for place in _places(_Place(value, old, schema, path)):
        for rule in place.schema.get(_RULES) or ():
            yield from _check(rule, place)


def _places(place: _Place) -> Iterator[_Place]:
    """Yields a value, and the values inside of it."""
    value, before, schema, path = place
    yield place
    if isinstance(value, dict):
        for key, inner in value.items():
            if (known := child(schema, key)) is not None:
                old = before.get(key, _ABSENT) if isinstance(before, dict) else _ABSENT
                where = f"{path}.{key}" if path else key
                yield from _places(_Place(inner, old, known, where))
    elif isinstance(value, list) and "items" in schema:
        keys = schema.get("x-kubernetes-list-map-keys")
        for at, inner in enumerate(value):
            old = _matching(inner, before, keys)
            yield from _places(_Place(inner, old, schema["items"], f"{path}[{at}]"))


def _matching(item: Any, before: Any, keys: list[str] | None) -> Any:
    if not keys or not isinstance(before, list) or not isinstance(item, dict):
        return _ABSENT
    wanted = [item.get(key) for key in keys]
    return next((o for o in before if [o.get(k) for k in keys] == wanted), _ABSENT)


def _check(rule: dict[str, Any], place: _Place) -> Iterator[Cause]:
    text, values = rule["rule"], {"self": place.value}
    if re.search(r"\boldSelf\b", text):
        if place.before is _ABSENT:
            return
        values["oldSelf"] = place.before
    told = str(rule.get("message") or f"failed rule: {text}")
    reason, path = rule.get("reason", "FieldValueInvalid"), rule.get("fieldPath", "")
    try:
        if _run(text, values) is True:
            return
    except _ERRORS as error:
        why = f"no such key: {error.args[0]}" if isinstance(error, KeyError) else error
        told, reason, path = f"{why} evaluating rule: {told}", "FieldValueInvalid", ""
    shown = '"object"' if isinstance(place.value, dict) else repr(place.value)
    where = f"{place.path}{path}".lstrip(".")
    yield Cause(reason, f"Invalid value: {shown}: {told}", where)


@lru_cache(maxsize=4096)
def _program(text: str) -> cel.Program:
    return cel.compile(text)


def _run(text: str, values: dict[str, Any]) -> Any:
    return _program(text).execute(cel.Context(values))
