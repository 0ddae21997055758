"""Definitions of custom resources: whether they are good, and which kind they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import cel
from drivetrain_cluster_double import schema as schema_module
from drivetrain_cluster_double.errors import Cause
from drivetrain_cluster_double.kinds import Column, Kind, ScalePaths

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CLEAN_UP", "definition_errors", "established", "kind_of"]

CLEAN_UP = "customresourcecleanup.apiextensions.k8s.io"
"""The finalizer of definitions whose objects are there."""

_Item = dict[str, Any]


def definition_errors(item: _Item) -> Iterator[Cause]:
    """Yields what is wrong with a definition.

    Args:
        item: The `CustomResourceDefinition`.
    """
    spec = item.get("spec") or {}
    names = spec.get("names") or {}
    for field in ("group", "scope", "versions"):
        if not spec.get(field):
            yield Cause("FieldValueRequired", "Required value", f"spec.{field}")
    for field in ("kind", "plural"):
        if not names.get(field):
            yield Cause("FieldValueRequired", "Required value", f"spec.names.{field}")
    wanted = f"{names.get('plural')}.{spec.get('group')}"
    if item["metadata"]["name"] != wanted:
        message = (
            f'Invalid value: "{item["metadata"]["name"]}": must be spec.names.plural+"."'
            "+spec.group"
        )
        yield Cause("FieldValueInvalid", message, "metadata.name")
    if spec.get("scope") not in {"Namespaced", "Cluster", None}:
        message = (
            f'Unsupported value: "{spec["scope"]}": supported values: "Cluster", '
            '"Namespaced"'
        )
        yield Cause("FieldValueNotSupported", message, "spec.scope")
    versions = spec.get("versions") or []
    if versions and sum(bool(one.get("storage")) for one in versions) != 1:
        message = (
            "Invalid value: must have exactly one version marked as storage version"
        )
        yield Cause("FieldValueInvalid", message, "spec.versions")
    for at, version in enumerate(versions):
        yield from _version_errors(version, f"spec.versions[{at}]")


def _version_errors(version: _Item, path: str) -> Iterator[Cause]:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    where = f"{path}.schema.openAPIV3Schema"
    if not schema:
        message = "Required value: schemas are required"
        yield Cause("FieldValueRequired", message, where)
        return
    if schema.get("type") != "object":
        message = "Invalid value: must be object at the root"
        yield Cause("FieldValueInvalid", message, f"{where}.type")
    causes = list(_schema_errors(schema, where))
    yield from causes or cel.rule_errors(schema, where)
    scale = (version.get("subresources") or {}).get("scale")
    for name in ("specReplicasPath", "statusReplicasPath"):
        if scale and not str(scale.get(name, "")).startswith("."):
            message = "Required value: a path as .spec.replicas"
            place = f"{path}.subresources.scale.{name}"
            yield Cause("FieldValueRequired", message, place)


_OBJECTS = {"type": "object", "additionalProperties": {"type": "object"}}
_TEXTS = {"type": "array", "items": {"type": "string"}}
# What is looked at of a schema, itself described by one.
_SCHEMA: _Item = {
    "type": "object",
    "properties": {
        "type": {
            "type": "string",
            "enum": ["object", "array", "string", "boolean", "integer", "number"],
        },
        "properties": _OBJECTS,
        "items": {"type": "object"},
        "required": _TEXTS,
        "enum": {"type": "array"},
        "pattern": {"type": "string"},
        "x-kubernetes-list-type": {"type": "string", "enum": ["atomic", "set", "map"]},
        "x-kubernetes-list-map-keys": _TEXTS,
        "x-kubernetes-validations": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["rule"],
                "properties": {
                    "rule": {"type": "string"},
                    "message": {"type": "string"},
                    "messageExpression": {"type": "string"},
                    "fieldPath": {"type": "string"},
                },
            },
        },
        **{
            name: {"type": "integer"} for name in ("minLength", "maxLength", "minItems")
        },
        **{name: {"type": "number"} for name in ("minimum", "maximum", "multipleOf")},
    },
}


def _schema_errors(schema: _Item, path: str) -> Iterator[Cause]:
    """Yields where a schema is not structural."""
    if wrong := list(schema_module.validate(schema, _SCHEMA, path)):
        yield from wrong
        return
    is_open = schema.get("x-kubernetes-preserve-unknown-fields")
    if not (schema.get("type") or schema.get("x-kubernetes-int-or-string") or is_open):
        message = "Required value: must not be empty for specified object fields"
        yield Cause("FieldValueRequired", message, f"{path}.type")
    if schema.get("properties") and schema.get("additionalProperties"):
        message = "Forbidden: additionalProperties and properties are mutual exclusive"
        yield Cause("FieldValueForbidden", message, f"{path}.additionalProperties")
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        yield Cause(
            "FieldValueRequired", "Required value: must be specified", f"{path}.items"
        )
    if schema.get("x-kubernetes-list-type") == "map":
        known = (schema.get("items") or {}).get("properties") or {}
        keys = schema.get("x-kubernetes-list-map-keys") or []
        if not keys or not isinstance(known, dict) or set(keys) - set(known):
            message = "Invalid value: must name required properties of the items"
            yield Cause(
                "FieldValueInvalid", message, f"{path}.x-kubernetes-list-map-keys"
            )
    for name, inner in (schema.get("properties") or {}).items():
        yield from _schema_errors(inner, f"{path}.properties[{name}]")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from _schema_errors(schema[name], f"{path}.{name}")


def kind_of(item: _Item) -> Kind:
    """Returns the kind that a good definition makes."""
    spec = item["spec"]
    names = spec["names"]
    versions = [one for one in spec["versions"] if one.get("served", True)]
    versions.sort(key=lambda one: not one.get("storage"))
    scales, columns, fields = {}, {}, {"metadata.name", "metadata.namespace"}
    for version in versions:
        name, parts = version["name"], version.get("subresources") or {}
        if scale := parts.get("scale"):
            scales[name] = ScalePaths(
                scale["specReplicasPath"],
                scale["statusReplicasPath"],
                scale.get("labelSelectorPath", ""),
            )
        printed = version.get("additionalPrinterColumns")
        if printed:
            columns[name] = tuple(
                Column(
                    one["name"], one["type"], one["jsonPath"], one.get("priority", 0)
                )
                for one in printed
            )
        for one in version.get("selectableFields") or ():
            fields.add(one["jsonPath"].lstrip("."))
    return Kind(
        name=names["kind"],
        plural=names["plural"],
        singular=names.get("singular", ""),
        group=spec["group"],
        versions=tuple(one["name"] for one in versions),
        is_namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        has_status=any("status" in (one.get("subresources") or {}) for one in versions),
        has_generation=True,
        fields=frozenset(fields),
        scale=scales,
        schemas={one["name"]: one["schema"]["openAPIV3Schema"] for one in versions},
        columns=columns,
        is_custom=True,
        keeps_unknown=bool(spec.get("preserveUnknownFields")),
    )


def established(item: _Item, time: str) -> _Item:
    """Returns a definition whose kind is served.

    Args:
        item: The definition.
        time: Now, as RFC 3339 has it.
    """
    spec, metadata = item["spec"], item["metadata"]
    status = item.get("status") or {}
    if status.get("acceptedNames") == spec["names"] and CLEAN_UP in (
        metadata.get("finalizers") or ()
    ):
        return item
    conditions = [
        {
            "type": kind,
            "status": "True",
            "lastTransitionTime": time,
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
    stored = [one["name"] for one in spec["versions"] if one.get("storage")]
    status = {
        "conditions": conditions,
        "acceptedNames": spec["names"],
        "storedVersions": stored,
    }
    finalizers = [f for f in metadata.get("finalizers") or () if f != CLEAN_UP]
    metadata = {**metadata, "finalizers": [*finalizers, CLEAN_UP]}
    return {**item, "metadata": metadata, "status": status}
