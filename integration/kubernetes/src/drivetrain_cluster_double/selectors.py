"""Which objects a list or a watch wants: selectors of labels and of fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from drivetrain_cluster_double.errors import bad_request

_TERM = re.compile(
    r"""\s*(?:
        !\s*(?P<absent>[\w./-]+)
      | (?P<member>[\w./-]+)\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
      | (?P<key>[\w./-]+)\s*(?P<sign>==|!=|=|>|<)\s*(?P<value>[\w.-]*)
      | (?P<present>[\w./-]+)
    )\s*(?:,|$)""",
    re.VERBOSE,
)
_SIGNS = {"in": "In", "notin": "NotIn", "!=": "NotIn", ">": "Gt", "<": "Lt"}
_MOST_CHARS = 63


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
        if self.operator in {"In", "NotIn"}:
            return (value in self.values) == (self.operator == "In")
        if self.operator in {"Exists", "DoesNotExist"}:
            return (value is None) == (self.operator == "DoesNotExist")
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
        >>> selector = Selector(parse_labels("app=train,tier in (a, b),!old"))
        >>> selector.matches({"metadata": {"labels": {"app": "train", "tier": "b"}}})
        True
    """

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, item: Mapping[str, Any]) -> bool:
        """Whether an object meets all conditions."""
        labels = item["metadata"].get("labels") or {}
        return all(one.holds(labels.get(one.key)) for one in self.labels) and all(
            one.holds(_field(item, one.key)) for one in self.fields
        )


def _field(item: Mapping[str, Any], path: str) -> str:
    value: Any = item
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Reads a selector of labels.

    Raises:
        StatusError: It cannot be read.
    """
    found, at = [], 0
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None:
            raise bad_request(f"unable to parse requirement: found {text[at:]!r}")
        at = term.end()
        if name := term["absent"] or term["present"]:
            found.append(
                Requirement(name, "DoesNotExist" if term["absent"] else "Exists")
            )
            continue
        values = term["values"].split(",") if term["set"] else [term["value"]]
        values = [value.strip() for value in values]
        if long := [value for value in values if len(value) > _MOST_CHARS]:
            message = (
                f"unable to parse requirement: Invalid value: {long[0]!r}: must be no "
                f"more than {_MOST_CHARS} bytes"
            )
            raise bad_request(message)
        operator = _SIGNS.get(term["set"] or term["sign"], "In")
        found.append(
            Requirement(term["member"] or term["key"], operator, tuple(values))
        )
    return tuple(found)


def parse_fields(text: str, allowed: frozenset[str]) -> tuple[Requirement, ...]:
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
            raise bad_request(f"invalid selector: {term!r}; can't understand {term!r}")
        key, sign, value = parts.groups()
        if key not in allowed:
            raise bad_request(f"field label not supported: {key}")
        found.append(Requirement(key, _SIGNS.get(sign, "In"), (value,)))
    return tuple(found)
