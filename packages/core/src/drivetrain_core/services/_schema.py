"""Frozen dataclasses that are read from plain data strictly, and written back to it.

Each field says how it is read (`metadata["as"]`) and under which key. A mistake is an
error that names the path inside the file: `nodes[0].devices.memory`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from drivetrain_core._errors import ClusterSpecError
from drivetrain_core.services._units import read_quantity, write_quantity

if TYPE_CHECKING:
    from drivetrain_core.services._units import Quantity

_T = TypeVar("_T")


class Kind(ABC):
    """How one field is read, checked and written: as it is, or as a kind says."""

    def read(self, plain: Any, path: str) -> Any:
        """Returns the value for what stands in the file."""
        self.check(plain, path)
        return plain

    @abstractmethod
    def check(self, value: Any, path: str) -> None:
        """Raises `ClusterSpecError` unless the value is one of this kind."""

    def write(self, value: Any) -> object:
        """Returns what stands in the file for a value."""
        return value


@dataclasses.dataclass(frozen=True)
class Text(Kind):
    """Text that is not empty; one of some choices, if there are any."""

    choices: Callable[[], tuple[str, ...]] = tuple

    def check(self, value: Any, path: str) -> None:
        """Raises unless it is such a text."""
        if not isinstance(value, str) or not value:
            raise wrong(path, f"must be text, got {value!r}")
        if (choices := self.choices()) and value not in choices:
            raise wrong(path, f"is {value!r}{choose(value, choices)}")


class Flag(Kind):
    """True or false."""

    def check(self, value: Any, path: str) -> None:
        """Raises unless it is a boolean."""
        if not isinstance(value, bool):
            raise wrong(path, f"must be true or false, got {value!r}")


@dataclasses.dataclass(frozen=True)
class Number(Kind):
    """A finite number, an integer if so wanted."""

    minimum: float = 0
    whole: bool = False

    def check(self, value: Any, path: str) -> None:
        """Raises unless it is such a number."""
        kind = int if self.whole else (int, float)
        if not isinstance(value, kind) or isinstance(value, bool):
            what = "an integer" if self.whole else "a number"
            raise wrong(path, f"must be {what}, got {value!r}")
        if not math.isfinite(value) or value < self.minimum:
            raise wrong(path, f"must be at least {self.minimum:g}, got {value!r}")


@dataclasses.dataclass(frozen=True)
class Amount(Kind):
    """A quantity with a unit; in Python the bare number in its base unit."""

    quantity: Quantity

    def read(self, plain: Any, path: str) -> float:
        """Returns the number for a text such as `80GiB`."""
        try:
            return read_quantity(plain, self.quantity)
        except ValueError as error:
            raise wrong(path, str(error)) from error

    def check(self, value: Any, path: str) -> None:
        """Raises unless it is a number that is not negative."""
        Number(whole=self.quantity.whole).check(value, path)

    def write(self, value: Any) -> str:
        """Returns the text with a unit."""
        return write_quantity(value, self.quantity)


@dataclasses.dataclass(frozen=True)
class Mapped(Kind):
    """A mapping from some known names to values of one kind."""

    inner: Kind
    names: tuple[str, ...]

    def read(self, plain: Any, path: str) -> dict[str, Any]:
        """Returns the values by name."""
        self._check_names(plain, path)
        return {k: self.inner.read(v, f"{path}.{k}") for k, v in plain.items()}

    def check(self, value: Any, path: str) -> None:
        """Raises unless every name is known and every value of its kind."""
        self._check_names(value, path)
        for name, item in value.items():
            self.inner.check(item, f"{path}.{name}")

    def write(self, value: Any) -> object:
        """Returns what stands in the file, by name."""
        return {name: self.inner.write(item) for name, item in value.items()}

    def _check_names(self, mapping: Any, path: str) -> None:
        if not isinstance(mapping, Mapping):
            raise wrong(path, f"must be a mapping, got {mapping!r}")
        for name in mapping:
            if name not in self.names:
                raise wrong(path, f"has {name!r}{choose(name, self.names)}")


@dataclasses.dataclass(frozen=True)
class Nested(Kind):
    """A dataclass inside a dataclass."""

    schema: type

    def read(self, plain: Any, path: str) -> Any:
        """Returns the object."""
        return from_plain(self.schema, plain, path)

    def check(self, value: Any, path: str) -> None:
        """Raises unless it is an object of the class, which has checked itself."""
        if not isinstance(value, self.schema):
            name = self.schema.__name__
            raise wrong(path, f"must be a {name}, got {value!r}")

    def write(self, value: Any) -> object:
        """Returns the object as a mapping."""
        return to_plain(value)


@dataclasses.dataclass(frozen=True)
class NestedList(Kind):
    """A list of dataclasses; a tuple in Python."""

    schema: type

    def read(self, plain: Any, path: str) -> tuple[Any, ...]:
        """Returns the objects."""
        if not isinstance(plain, Sequence) or isinstance(plain, str):
            raise wrong(path, f"must be a list, got {plain!r}")
        items = enumerate(plain)
        return tuple(from_plain(self.schema, item, f"{path}[{i}]") for i, item in items)

    def check(self, value: Any, path: str) -> None:
        """Raises unless it is a tuple of objects of the class."""
        if not isinstance(value, tuple):
            raise wrong(path, f"must be a tuple, got {value!r}")
        for i, item in enumerate(value):
            Nested(self.schema).check(item, f"{path}[{i}]")

    def write(self, value: Any) -> object:
        """Returns the objects as a list of mappings."""
        return [to_plain(item) for item in value]


def from_plain(schema: type[_T], plain: object, path: str) -> _T:
    """Returns the object that plain data describes.

    Args:
        schema: A dataclass whose fields have a kind.
        plain: A mapping as a file holds it.
        path: Where it stands in the file.

    Raises:
        ClusterSpecError: A key is unknown or missing, or a value is not of its kind.
    """
    if not isinstance(plain, Mapping):
        raise wrong(path, f"must be a mapping, got {plain!r}")
    fields = {_key(f): f for f in dataclasses.fields(schema)}  # type: ignore[arg-type]
    for key in plain:
        if key not in fields:
            raise wrong(path, f"has {key!r}{choose(key, tuple(fields))}")
    values: dict[str, Any] = {}
    for key, field in fields.items():
        if key in plain:
            inside = f"{path}.{key}" if path else key
            values[field.name] = field.metadata["as"].read(plain[key], inside)
        elif _default(field) is dataclasses.MISSING:
            raise wrong(path, f"lacks the key {key!r}")
    try:
        return schema(**values)
    except ClusterSpecError as error:
        raise wrong(path, str(error)) from error


def to_plain(value: object) -> dict[str, object]:
    """Returns an object as a file holds it; what has its default is left out."""
    plain: dict[str, object] = {}
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        item = getattr(value, field.name)
        if item != _default(field):
            plain[_key(field)] = field.metadata["as"].write(item)
    return plain


def check_fields(value: object) -> None:
    """Raises `ClusterSpecError` unless every field of an object is of its kind."""
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        item = getattr(value, field.name)
        if item != _default(field):
            field.metadata["as"].check(item, field.name)


def wrong(path: str, problem: str) -> ClusterSpecError:
    """Returns the error for a place in a file."""
    return ClusterSpecError(f"{path} {problem}" if path else problem)


def choose(given: object, known: tuple[str, ...]) -> str:
    """Returns the end of a message about a name that is not known."""
    near = difflib.get_close_matches(str(given), known, n=3)
    if near:
        return f", which is unknown; nearest: {', '.join(near)}"
    return f", which is unknown; known are {', '.join(known)}"


def _key(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("key", field.name))


def _default(field: dataclasses.Field[Any]) -> object:
    """Returns what a field is if it is left out; MISSING if it cannot be."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
