"""Definitions of custom resources: whether an API server takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from drivetrain_cluster_double import cel, times
from drivetrain_cluster_double.errors import Cause, bad_request, not_done, wrong
from drivetrain_cluster_double.schema import NOT_DONE, child, prune, validate

_Item = dict[str, Any]

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_META = {"name", "generateName"}
# Groups of Kubernetes itself, in which definitions need its approval.
_OWN_GROUP = re.compile(r"(.+\.)?(k8s|kubernetes)\.io")


def definition_causes(item: _Item, _: _Item | None = None) -> Iterator[Cause]:
    """Yields what is wrong with a definition.

    Args:
        item: The `CustomResourceDefinition`.

    Raises:
        StatusError: A schema is of another form than schemas are (400).
    """
    spec, metadata = item.get("spec") or {}, item["metadata"]
    versions, group = spec.get("versions") or [], spec.get("group", "")
    wanted = f"{(spec.get('names') or {}).get('plural')}.{group}"
    if metadata["name"] != wanted:
        yield wrong(
            "Invalid", "metadata.name", 'must be spec.names.plural+"."+spec.group'
        )
    approval = "api-approved.kubernetes.io"
    if _OWN_GROUP.fullmatch(group) and approval not in (
        metadata.get("annotations") or {}
    ):
        yield wrong("Required", f"metadata.annotations[{approval}]")
    if sum(bool(one.get("storage")) for one in versions) != 1:
        message = "must have exactly one version marked as storage version"
        yield wrong("Invalid", "spec.versions", message)
    for at, version in enumerate(versions):
        # The server keeps the schema of an only version apart from it.
        path = (
            "spec.validation" if len(versions) == 1 else f"spec.versions[{at}].schema"
        )
        path, shape = (
            f"{path}.openAPIV3Schema",
            (version.get("schema") or {}).get("openAPIV3Schema"),
        )
        if not shape:
            yield Cause(
                "FieldValueRequired", "Required value: schemas are required", path
            )
            continue
        try:
            yield from list(_schema_causes(shape, path))
        except (AttributeError, KeyError, TypeError) as error:
            raise bad_request(f"json: cannot unmarshal {path}: {error}") from error


def _schema_causes(shape: _Item, path: str) -> Iterator[Cause]:
    causes = list(_root_causes(shape, path))
    for where, inner in _parts(shape, path):
        causes += _form_causes(inner, where)
    if not causes:
        causes += cel.rule_causes(shape, path)
    if not causes:
        for where, inner in _parts(shape, path):
            causes += _default_causes(inner, f"{where}.default")
    yield from causes


def _parts(shape: _Item, path: str) -> Iterator[tuple[str, _Item]]:
    """Yields a schema, and those inside of it, with their paths."""
    yield path, shape
    for name, inner in (shape.get("properties") or {}).items():
        yield from _parts(inner, f"{path}.properties[{name}]")
    for name in ("items", "additionalProperties"):
        if isinstance(shape.get(name), dict):
            yield from _parts(shape[name], f"{path}.{name}")


def _root_causes(shape: _Item, path: str) -> Iterator[Cause]:
    if shape.get("type", "object") != "object":
        yield from [wrong("Invalid", f"{path}.type", "must be object at the root")] * 2
    metadata = (shape.get("properties") or {}).get("metadata") or {}
    if set(metadata.get("properties") or {}) - _META:
        message = "must not specify anything other than name and generateName"
        yield wrong("Forbidden", f"{path}.properties[metadata]", message)


def _form_causes(shape: _Item, path: str) -> Iterator[Cause]:
    """Yields where a schema is not structural."""
    kind, keys = shape.get("type"), shape.get("x-kubernetes-list-map-keys")
    is_open = shape.get("x-kubernetes-preserve-unknown-fields")
    is_any = is_open or shape.get("x-kubernetes-int-or-string") or "$ref" in shape
    if kind is None and not is_any:
        yield wrong("Required", f"{path}.type", "must not be empty")
    if kind not in {None, *_TYPES}:
        yield wrong(
            "NotSupported", f"{path}.type", f'"{kind}": one of {", ".join(_TYPES)}'
        )
    if lacking := set(NOT_DONE) & shape.keys():
        raise not_done(f"{path} with {', '.join(lacking)}")
    for name in ("$ref", "uniqueItems"):
        if shape.get(name):
            yield wrong("Forbidden", f"{path}.{name}", "is not supported")
    if shape.get("properties") and shape.get("additionalProperties"):
        message = "additionalProperties and properties are mutual exclusive"
        yield wrong("Forbidden", f"{path}.additionalProperties", message)
    if kind == "array" and not isinstance(shape.get("items"), dict):
        yield wrong("Required", f"{path}.items", "must be specified")
    try:
        re.compile(shape.get("pattern", ""))
    except re.error as error:
        yield wrong("Invalid", f"{path}.pattern", f'"{shape["pattern"]}": {error}')
    if shape.get("x-kubernetes-list-type") == "map" and not keys:
        yield wrong("Required", f"{path}.x-kubernetes-list-map-keys")
    for key in keys or ():
        known = child(shape.get("items") or {}, key)
        if known is None:
            message = f"{key}: must name a property of the items"
            yield wrong("Invalid", f"{path}.x-kubernetes-list-map-keys", message)
        elif (
            key not in (shape["items"].get("required") or ()) and "default" not in known
        ):
            yield wrong("Required", f"{path}.items.properties[{key}].default")


def _default_causes(shape: _Item, path: str) -> Iterator[Cause]:
    """Yields what is wrong with a default, as it stands: before defaults inside of it."""
    value = shape.get("default")
    if "default" not in shape:
        return
    if prune(value, shape, is_root=False) != value:
        yield wrong("Invalid", path, f"{value}: must not have unknown fields")
    elif causes := list(validate(value, shape, path)):
        yield from causes
    else:
        # Rules of transitions too: a server takes the default for the old value.
        yield from cel.broken_rules(value, value, shape, path)


def established(item: _Item) -> _Item:
    """Returns a definition whose kind is served."""
    spec = item["spec"]
    conditions = [
        {
            "type": kind,
            "status": "True",
            "lastTransitionTime": times.format_time(),
            "reason": reason,
            "message": message,
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            (
                "Established",
                "InitialNamesAccepted",
                "the initial names have been accepted",
            ),
        )
    ]
    stored = [one["name"] for one in spec["versions"] if one["storage"]]
    names = {"acceptedNames": spec["names"], "storedVersions": stored}
    return {**item, "status": {"conditions": conditions, **names}}
