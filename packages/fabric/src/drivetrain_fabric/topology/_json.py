"""Frozen dataclasses to plain data and back, strictly: each mistake is named by its path.

The types of the fields say what a file may hold. What has its default is left out.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from typing import Any, TypeVar

from drivetrain_fabric.topology._errors import TopologyError

_T = TypeVar("_T")
_WORDS = {str: "text", int: "an integer", float: "a number", bool: "true or false"}


def to_plain(value: Any) -> Any:
    """Returns what `json.dump` takes.

    Args:
        value: A dataclass, or what stands in one.
    """
    if dataclasses.is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in _fields(type(value)))
        return {f.name: to_plain(item) for f, item in pairs if item != f.default}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(schema: type[_T], plain: object, path: str = "") -> _T:
    """Returns the object that plain data describes.

    Args:
        schema: A dataclass of text, numbers, tuples and dataclasses.
        plain: What `json.load` returned.
        path: Where it stands in the file.

    Raises:
        TopologyError: A key is unknown or missing, or a value is of another type.

    Example:
        >>> from drivetrain_fabric.topology._parts import NumaNode
        >>> from_plain(NumaNode, {"index": "0"}, "numa_nodes[0]")
        Traceback (most recent call last):
        ...
        drivetrain_fabric.topology._errors.TopologyError: numa_nodes[0].index must be \
an integer, got '0'
    """
    if not isinstance(plain, dict):
        raise _wrong(path, f"must be an object, got {_shown(plain)}")
    fields = {field.name: field for field in _fields(schema)}
    for key in plain:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1) or list(fields)
            raise _wrong(path, f"has the unknown key {key!r}; known: {', '.join(near)}")
    kinds = typing.get_type_hints(schema)
    values = {}
    for name, field in fields.items():
        if name in plain:
            inside = f"{path}.{name}" if path else name
            values[name] = _value(kinds[name], plain[name], inside)
        elif field.default is dataclasses.MISSING:
            raise _wrong(path, f"lacks the key {name!r}")
    return schema(**values)


def _value(kind: Any, plain: object, path: str) -> Any:
    if typing.get_origin(kind) is types.UnionType:
        if plain is None:
            return None
        kind = next(arm for arm in typing.get_args(kind) if arm is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        if not isinstance(plain, list):
            raise _wrong(path, f"must be a list, got {_shown(plain)}")
        inner = typing.get_args(kind)[0]
        return tuple(_value(inner, p, f"{path}[{i}]") for i, p in enumerate(plain))
    if dataclasses.is_dataclass(kind):
        return from_plain(typing.cast("type[Any]", kind), plain, path)
    if kind is float and type(plain) is int:
        plain = float(plain)
    # A bool is an int to isinstance, but not to a reader.
    if type(plain) is not kind:
        raise _wrong(path, f"must be {_WORDS[kind]}, got {_shown(plain)}")
    return plain


def _fields(schema: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(schema)


def _shown(plain: object) -> str:
    text = repr(plain)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _wrong(path: str, problem: str) -> TopologyError:
    return TopologyError(f"{path} {problem}" if path else f"it {problem}")
