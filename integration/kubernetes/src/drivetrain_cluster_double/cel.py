"""Rules of custom resources, in the Common Expression Language.

The language itself is a library's. What the library lacks is refused when the definition
is created: optional values (`self.?a`) and the functions that Kubernetes adds beyond those
of `FUNCTIONS`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double.errors import Cause
from drivetrain_core import MissingLibraryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from cel import Program

__all__ = ["FUNCTIONS", "broken_rules", "rule_errors"]

_RULES = "x-kubernetes-validations"
_ABSENT: Any = object()


def _join(values: list[str], separator: str = "") -> str:
    return separator.join(values)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "isSorted": lambda values: list(values) == sorted(values),
    "sum": sum,
    "min": min,
    "max": max,
    "indexOf": lambda value, part: (
        value.find(part)
        if isinstance(value, str)
        else next((at for at, one in enumerate(value) if one == part), -1)
    ),
    "lowerAscii": lambda text: text.lower(),
    "upperAscii": lambda text: text.upper(),
    "trim": lambda text: text.strip(),
    "split": lambda text, separator: text.split(separator),
    "join": _join,
    "replace": lambda text, old, new: text.replace(old, new),
    "substring": lambda text, start, *end: text[start : end[0] if end else None],
    "find": lambda text, pattern: ((m := re.search(pattern, text)) and m[0]) or "",
    "findAll": lambda text, pattern: [m[0] for m in re.finditer(pattern, text)],
}
"""What Kubernetes adds to the language, as far as it is known here."""

# What the library itself brings.
_OWN = frozenset(
    [
        "all",
        "bool",
        "bytes",
        "contains",
        "double",
        "duration",
        "endsWith",
        "exists",
        "exists_one",
        "filter",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getFullYear",
        "getHours",
        "getMilliseconds",
        "getMinutes",
        "getMonth",
        "getSeconds",
        "has",
        "int",
        "map",
        "matches",
        "max",
        "min",
        "size",
        "startsWith",
        "string",
        "timestamp",
        "type",
        "uint",
    ]
)


class _Place(NamedTuple):
    """A value with rules of its own, and what it was before."""

    value: Any
    before: Any
    schema: dict[str, Any]
    path: str


def rule_errors(schema: dict[str, Any], path: str) -> Iterator[Cause]:
    """Yields what is wrong with the rules of a schema.

    Args:
        schema: Of a version of a definition.
        path: Where the schema is, for messages.

    Raises:
        MissingLibraryError: The library of the language is not installed.
    """
    for at, rule in enumerate(schema.get(_RULES) or ()):
        for name in ("rule", "messageExpression"):
            text = rule.get(name, "" if name == "rule" else "''")
            where = f"{path}.{_RULES}[{at}].{name}"
            if why := _compile_error(text):
                message = f"Invalid value: {text!r}: compilation failed: {why}"
                yield Cause("FieldValueInvalid", message, where)
    for key, inner in (schema.get("properties") or {}).items():
        yield from rule_errors(inner, f"{path}.properties[{key}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from rule_errors(schema[key], f"{path}.{key}")


def broken_rules(
    value: Any, before: Any, schema: dict[str, Any], path: str = ""
) -> Iterator[Cause]:
    """Yields the rules that a value breaks.

    Args:
        value: An object that its schema otherwise allows.
        before: What it was; None when it is created.
        schema: Of the value.
        path: Where the value is, for messages.

    Raises:
        MissingLibraryError: The library of the language is not installed.
    """
    old = _ABSENT if before is None else before
    for place in _places(_Place(value, old, schema, path)):
        for rule in place.schema[_RULES]:
            yield from _check(rule, place)


def _places(place: _Place) -> Iterator[_Place]:
    """Yields the values inside of one that have rules, itself first."""
    value, before, schema, path = place
    if not _has_rules(id(schema), schema):
        return
    if schema.get(_RULES):
        yield place
    if isinstance(value, dict):
        known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, inner in value.items():
            found = known.get(key) or (rest if isinstance(rest, dict) else None)
            if found is not None:
                old = before.get(key, _ABSENT) if isinstance(before, dict) else _ABSENT
                where = f"{path}.{key}" if path else key
                yield from _places(_Place(inner, old, found, where))
    elif isinstance(value, list) and "items" in schema:
        keys = schema.get("x-kubernetes-list-map-keys")
        for at, inner in enumerate(value):
            old = _matching(inner, before, keys)
            yield from _places(_Place(inner, old, schema["items"], f"{path}[{at}]"))


_KNOWN: dict[int, tuple[dict[str, Any], bool]] = {}


def _has_rules(number: int, schema: dict[str, Any]) -> bool:
    """Whether there is any rule in a schema; remembered, with the schema itself."""
    if number not in _KNOWN:
        inner = [*(schema.get("properties") or {}).values()]
        inner += [schema.get("items"), schema.get("additionalProperties")]
        found = bool(schema.get(_RULES)) or any(
            _has_rules(id(one), one) for one in inner if isinstance(one, dict)
        )
        if len(_KNOWN) > 20_000:
            _KNOWN.clear()
        _KNOWN[number] = schema, found
    return _KNOWN[number][1]


def _matching(item: Any, before: Any, keys: list[str] | None) -> Any:
    if not keys or not isinstance(before, list) or not isinstance(item, dict):
        return _ABSENT
    wanted = [item.get(key) for key in keys]
    return next((o for o in before if [o.get(k) for k in keys] == wanted), _ABSENT)


def _check(rule: dict[str, Any], place: _Place) -> Iterator[Cause]:
    text = rule["rule"]
    is_transition = re.search(r"\boldSelf\b", text) is not None
    if is_transition and place.before is _ABSENT:
        return
    values = {"self": place.value}
    if is_transition:
        values["oldSelf"] = place.before
    path = f"{place.path}{rule.get('fieldPath', '')}".lstrip(".")
    # The library raises whatever a function of Python's raises.
    try:
        if _run(text, values) is True:
            return
        message = _message(rule, values)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        message = f"rule evaluation error: {error}"
    shown = '"object"' if isinstance(place.value, dict) else repr(place.value)
    reason = rule.get("reason", "FieldValueInvalid")
    yield Cause(reason, f"Invalid value: {shown}: {message}", path)


def _message(rule: dict[str, Any], values: dict[str, Any]) -> str:
    if "messageExpression" in rule:
        return str(_run(rule["messageExpression"], values))
    return str(rule.get("message") or f"failed rule: {rule['rule']}")


def _run(text: str, values: dict[str, Any]) -> Any:
    cel = _import_cel()
    context = cel.Context(values)
    for name, function in FUNCTIONS.items():
        if name in text:
            context.add_function(name, function)
    return _program(text).execute(context)


@lru_cache(maxsize=4096)
def _program(text: str) -> Program:
    program: Program = _import_cel().compile(text)
    return program


def _compile_error(text: str) -> str | None:
    _import_cel()
    try:
        _program(text)
    except ValueError as error:
        return str(error).replace("\n", " ")
    bare = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "''", text)
    called = set(re.findall(r"([A-Za-z_]\w*)\s*\(", bare)) - {"in"}
    unknown = sorted(called - _OWN - set(FUNCTIONS))
    if unknown:
        return f"undeclared reference to '{unknown[0]}'"
    return None


@lru_cache(maxsize=1)
def _import_cel() -> ModuleType:
    try:
        import cel
    except ImportError as error:
        message = (
            "rules of custom resources need the library common-expression-language: "
            "pip install integration/kubernetes"
        )
        raise MissingLibraryError(message) from error
    return cel
