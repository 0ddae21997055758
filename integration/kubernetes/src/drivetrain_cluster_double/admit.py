"""What is made of an object before it is stored, and what must hold of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import cel, schema
from drivetrain_cluster_double.definitions import definition_errors
from drivetrain_cluster_double.errors import (
    Cause,
    StatusError,
    bad_request,
    invalid,
)
from drivetrain_cluster_double.shapes import METADATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_cluster_double.kinds import Kind

__all__ = ["check", "clean", "first_state", "next_state", "require_named"]

_Item = dict[str, Any]

_DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_FREE_NAMES = frozenset({"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
_SERVER_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "selfLink")
# What may change in the spec of a pod that is there.
_POD_CHANGES = (
    "activeDeadlineSeconds",
    "tolerations",
    "terminationGracePeriodSeconds",
    "nodeName",
)


def clean(
    kind: Kind, version: str, item: _Item, validation: str = ""
) -> tuple[_Item, list[str]]:
    """Returns an object without what its kind does not know, and with what is filled in.

    Args:
        kind: Of the object.
        version: In which it came.
        item: The object.
        validation: `Strict` to refuse unknown fields; `Warn` to be told of them.

    Returns:
        The object, and warnings.

    Raises:
        StatusError: It has unknown fields, and they are refused.
    """
    shape, warnings = kind.schema(version), []
    if not kind.keeps_unknown:
        pruned = schema.prune(item, shape)
        if validation in {"Strict", "Warn"}:
            unknown = [
                f'unknown field "{p}"' for p in schema.unknown_fields(item, pruned)
            ]
            if unknown and validation == "Strict":
                message = f"strict decoding error: {', '.join(unknown)}"
                raise bad_request(message)
            warnings = unknown
        item = pruned
    return schema.default(item, shape), warnings


def first_state(kind: Kind, item: _Item) -> _Item:
    """Returns a new object as it begins: without a status that others have to report."""
    metadata = {k: v for k, v in item["metadata"].items() if k not in _SERVER_FIELDS}
    for name in ("managedFields", "generation", "deletionGracePeriodSeconds"):
        metadata.pop(name, None)
    item = {**item, "metadata": metadata}
    if kind.has_generation:
        metadata["generation"] = 1
    if kind.has_status and kind.name not in {"Node", "Namespace"}:
        item.pop("status", None)
    match kind.name:
        case "Pod":
            return _first_pod(item)
        case "Namespace":
            spec = {"finalizers": ["kubernetes"], **item.get("spec", {})}
            return {**item, "spec": spec, "status": {"phase": "Active"}}
        case "Secret":
            return {"type": "Opaque", **item}
    return item


def _first_pod(item: _Item) -> _Item:
    spec = dict(item["spec"])
    spec["containers"] = [_with_requests(one) for one in spec["containers"]]
    resources = [one.get("resources") or {} for one in spec["containers"]]
    if all(one.get("limits") and one["limits"] == one["requests"] for one in resources):
        quality = "Guaranteed"
    else:
        quality = "Burstable" if any(resources) else "BestEffort"
    return {**item, "spec": spec, "status": {"phase": "Pending", "qosClass": quality}}


def _with_requests(container: _Item) -> _Item:
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return {**container, "resources": resources}
    requests = {**limits, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}


def next_state(kind: Kind, before: _Item, item: _Item, subresource: str) -> _Item:
    """Returns an object as an update leaves it: it changes only what it may change.

    Args:
        kind: Of the object.
        before: As it is.
        item: As somebody wants it.
        subresource: Through which; `status` changes the status alone.
    """
    metadata = {k: v for k, v in item["metadata"].items() if k != "managedFields"}
    old = before["metadata"]
    for name in (*_SERVER_FIELDS, "generation", "deletionGracePeriodSeconds"):
        metadata.pop(name, None)
        if name in old:
            metadata[name] = old[name]
    metadata["resourceVersion"] = old["resourceVersion"]
    if subresource == "status":
        found = {**before}
        found.pop("status", None)
        return {**found, "status": item["status"]} if "status" in item else found
    found = {**item, "metadata": metadata}
    if kind.has_status and subresource != "server":
        found.pop("status", None)
        if "status" in before:
            found["status"] = before["status"]
    if kind.has_generation and _spec(kind, before) != _spec(kind, found):
        metadata["generation"] = old.get("generation", 0) + 1
    return found


def _spec(kind: Kind, item: _Item) -> _Item:
    left_out = {"metadata", "status"} if kind.has_status else {"metadata"}
    return {key: value for key, value in item.items() if key not in left_out}


def check(kind: Kind, version: str, item: _Item, before: _Item | None = None) -> None:
    """Refuses an object that breaks a rule.

    Args:
        kind: Of the object.
        version: By whose schema to look at it.
        item: The object.
        before: As it was; None when it is created.

    Raises:
        StatusError: It breaks rules; all of them are told.
    """
    causes = list(_metadata(kind, item, before))
    causes += schema.validate(item, kind.schema(version))
    if not causes and kind.is_custom:
        causes += cel.broken_rules(item, before, kind.schema(version))
    if not causes and kind.name == "CustomResourceDefinition":
        causes += definition_errors(item)
    if not causes and kind.name == "Pod":
        causes += _pod(item, before)
    if causes:
        raise invalid(kind.group, kind.name, item["metadata"].get("name", ""), causes)


def _metadata(kind: Kind, item: _Item, before: _Item | None) -> Iterator[Cause]:
    metadata = item["metadata"]
    yield from schema.validate(metadata, METADATA, "metadata")
    name = str(metadata["name"])
    if (
        before is None
        and kind.name not in _FREE_NAMES
        and (len(name) > 253 or not _DNS.fullmatch(name))
    ):
        message = (
            f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of '
            "lower case alphanumeric characters, '-' or '.', and must start and end with "
            "an alphanumeric character"
        )
        yield Cause("FieldValueInvalid", message, "metadata.name")
    labels = metadata.get("labels")
    for key, value in labels.items() if isinstance(labels, dict) else ():
        text = str(value)
        if len(text) > 63 or not _LABEL_VALUE.fullmatch(text):
            message = f'Invalid value: "{text}": it is no valid label, the one of {key}'
            yield Cause("FieldValueInvalid", message, "metadata.labels")
    if before is not None and "deletionTimestamp" in before["metadata"]:
        there = before["metadata"].get("finalizers") or ()
        wanted = metadata.get("finalizers")
        added = (
            [f for f in wanted if f not in there] if isinstance(wanted, list) else []
        )
        if added:
            message = (
                "Forbidden: no new finalizers can be added if the object is being "
                f"deleted, found new finalizers {added}"
            )
            yield Cause("FieldValueForbidden", message, "metadata.finalizers")


def _pod(item: _Item, before: _Item | None) -> Iterator[Cause]:
    spec = item["spec"]
    for at, container in enumerate(spec["containers"]):
        if not container.get("image"):
            path = f"spec.containers[{at}].image"
            yield Cause("FieldValueRequired", "Required value", path)
    if before is None or _fixed(spec) == _fixed(before["spec"]):
        return
    message = (
        "Forbidden: pod updates may not change fields other than "
        "`spec.containers[*].image`,`spec.initContainers[*].image`,"
        "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
        "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if "
        "it was previously negative)"
    )
    yield Cause("FieldValueForbidden", message, "spec")


def _fixed(spec: _Item) -> _Item:
    found = {key: value for key, value in spec.items() if key not in _POD_CHANGES}
    for name in ("containers", "initContainers"):
        if name in found:
            found[name] = [{**one, "image": ""} for one in found[name]]
    return found


def require_named(kind: Kind, item: Any, name: str, namespace: str) -> _Item:
    """Returns an object that is what its path says.

    Objects of kinds that come with the server need not say what they are.

    Raises:
        StatusError: It is of another kind, or has another name.
    """
    if not isinstance(item, dict) or not isinstance(item.get("metadata", {}), dict):
        message = f"the body is no object: it begins with {str(item)[:60]!r}"
        raise bad_request(message)
    if not kind.is_custom:
        item = {"apiVersion": kind.api_version(), "kind": kind.name, **item}
    group = str(item.get("apiVersion", "")).rpartition("/")[0]
    if item.get("kind") != kind.name or group != kind.group:
        message = (
            f"the object provided is unrecognized (must be of type {kind.name}): got "
            f"{item.get('apiVersion')} {item.get('kind')}"
        )
        raise bad_request(message)
    metadata = item.get("metadata") or {}
    if namespace and metadata.get("namespace", namespace) != namespace:
        message = (
            "the namespace of the provided object does not match the namespace sent on "
            "the request"
        )
        raise bad_request(message)
    if name and metadata.get("name", name) != name:
        message = (
            f"the name of the object ({metadata['name']}) does not match the name on the "
            f"URL ({name})"
        )
        raise StatusError(400, "BadRequest", message)
    given = {"name": name} if name else {}
    if namespace:
        given["namespace"] = namespace
    return {**item, "metadata": {**metadata, **given}}
