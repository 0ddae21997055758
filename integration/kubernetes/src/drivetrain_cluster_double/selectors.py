"""Which objects a list or a watch wants: selectors of labels and of fields."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double.errors import StatusError, bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "EVERYTHING",
    "Requirement",
    "Selector",
    "field_value",
    "parse_fields",
    "parse_labels",
    "selector_of",
]

_TERM = re.compile(
    r"""\s*(?:
        (?P<absent>!)\s*(?P<name0>[\w./-]+)
      | (?P<name1>[\w./-]+)\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
      | (?P<name2>[\w./-]+)\s*(?P<sign>==|!=|=|>|<)\s*(?P<value>[\w.-]*)
      | (?P<name3>[\w./-]+)
    )\s*(?:,|$)""",
    re.VERBOSE,
)


class Requirement(NamedTuple):
    """One condition on a label or a field.

    Attributes:
        key: Which label, or which field, as `status.phase`.
        operator: One of `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`.
        values: With what it is compared.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, value: str | None) -> bool:
        """Whether a value meets the condition; None if there is no value."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        try:
            number, bound = int(value or ""), int(self.values[0])
        except ValueError:
            return False
        return number > bound if self.operator == "Gt" else number < bound


class Selector(NamedTuple):
    """Conditions that must all hold.

    Attributes:
        labels: On labels.
        fields: On fields.

    Example:
        >>> selector = parse_labels("app=train,tier in (a, b),!old")
        >>> selector.matches({"metadata": {"labels": {"app": "train", "tier": "b"}}})
        True
    """

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, item: Mapping[str, Any]) -> bool:
        """Whether an object meets all conditions."""
        if self.labels:
            labels = item["metadata"].get("labels") or {}
            if not all(one.holds(labels.get(one.key)) for one in self.labels):
                return False
        return all(one.holds(field_value(item, one.key)) for one in self.fields)


EVERYTHING = Selector()
"""The selector that all objects meet."""


def field_value(item: Mapping[str, Any], path: str) -> str:
    """Returns a field as a selector sees it: as a string, empty if it is missing."""
    value: Any = item
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def parse_labels(text: str) -> Selector:
    """Reads a selector of labels.

    Raises:
        StatusError: It cannot be read.
    """
    found, at = [], 0
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None:
            message = f"unable to parse requirement: found {text[at:]!r} in {text!r}"
            raise bad_request(message)
        found.append(_requirement(term))
        at = term.end()
    return Selector(labels=tuple(found))


def _requirement(term: re.Match[str]) -> Requirement:
    if term["absent"]:
        return Requirement(term["name0"], "DoesNotExist")
    if term["set"]:
        values = tuple(value.strip() for value in term["values"].split(","))
        return Requirement(
            term["name1"], "In" if term["set"] == "in" else "NotIn", values
        )
    if term["sign"]:
        names = {"!=": "NotIn", ">": "Gt", "<": "Lt"}
        operator = names.get(term["sign"], "In")
        return Requirement(term["name2"], operator, (term["value"],))
    return Requirement(term["name3"], "Exists")


def parse_fields(text: str, allowed: frozenset[str]) -> Selector:
    """Reads a selector of fields.

    Args:
        text: The selector.
        allowed: What may be selected of this kind.

    Raises:
        StatusError: It cannot be read, or asks for a field that may not be selected.
    """
    found = []
    for term in filter(None, text.split(",")):
        parts = re.fullmatch(r"\s*([^=!]+?)\s*(==|!=|=)\s*(.*?)\s*", term)
        if parts is None:
            message = f"invalid selector: {term!r}; can't understand {term!r}"
            raise bad_request(message)
        key, sign, value = parts.groups()
        if key not in allowed:
            message = f"field label not supported: {key}"
            raise bad_request(message)
        operator = "NotIn" if sign == "!=" else "In"
        found.append(Requirement(key, operator, (value,)))
    return Selector(fields=tuple(found))


def selector_of(spec: Mapping[str, Any] | None) -> Selector | None:
    """Returns the selector that an object holds, as `spec.selector` of a Deployment.

    Args:
        spec: With `matchLabels` and `matchExpressions`.

    Returns:
        The selector; None if there is none, which selects nothing.

    Raises:
        StatusError: An operator is unknown.
    """
    if spec is None:
        return None
    found = [
        Requirement(key, "In", (value,))
        for key, value in (spec.get("matchLabels") or {}).items()
    ]
    for one in spec.get("matchExpressions") or []:
        operator, values = one.get("operator", ""), tuple(one.get("values") or ())
        if operator not in {"In", "NotIn", "Exists", "DoesNotExist"}:
            message = f"{operator!r} is not a valid label selector operator"
            raise StatusError(422, "Invalid", message)
        found.append(Requirement(one["key"], operator, values))
    return Selector(labels=tuple(found))
