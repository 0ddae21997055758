"""What is made of an object before it is stored, and what must hold of it."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Any

from drivetrain_cluster_double import cel, schema
from drivetrain_cluster_double.definitions import definition_causes
from drivetrain_cluster_double.errors import Cause, bad_request, invalid, wrong
from drivetrain_cluster_double.kinds import Kind
from drivetrain_cluster_double.pod_rules import fill_pod, pod_causes

_Item = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(
    r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{,61}[A-Za-z0-9])?"
)
_FREE_NAMES = frozenset({"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
_MOST_ANNOTATIONS = 256 * 1024
_MOST_NAME, _MOST_NOTE = 253, 1024
_SERVER_FIELDS = (
    *("uid", "creationTimestamp", "deletionTimestamp", "selfLink"),
    *("generation", "deletionGracePeriodSeconds"),
)


def require_named(kind: Kind, item: Any, name: str, namespace: str) -> _Item:
    """Returns an object that is what its path says.

    Objects of kinds that come with the server need not say what they are.

    Args:
        kind: Of the path.
        item: The object.
        name: Of the path; empty if it names none.
        namespace: Of the path; empty if it names none.

    Raises:
        StatusError: It is of another kind, or has another name.
    """
    metadata = item.get("metadata") or {} if isinstance(item, dict) else None
    if not isinstance(metadata, dict):
        raise bad_request(f"the object provided is unrecognized: {str(item)[:60]!r}")
    found = (item.get("apiVersion"), item.get("kind"))
    if not kind.is_custom:
        found = (found[0] or kind.api_version(), found[1] or kind.name)
    if found not in {
        (kind.api_version(version), kind.name) for version in kind.versions
    }:
        message = (
            f"{found[1]} in version {found[0]!r} cannot be handled as a {kind.name} in "
            f"version {kind.api_version()!r}"
        )
        raise bad_request(message)
    for what, asked, given in (
        ("namespace", namespace, metadata.get("namespace")),
        ("name", name, metadata.get("name")),
    ):
        if asked and given and asked != given:
            message = (
                f"the {what} of the provided object ({given}) does not match the {what} "
                f"sent on the request ({asked})"
            )
            raise bad_request(message)
    path = {key: v for key, v in (("name", name), ("namespace", namespace)) if v}
    return {**item, "metadata": {**metadata, **path}}


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
        StatusError: It has unknown fields, and they are refused, or is of wrong types.
    """
    shape, warnings = kind.schema(version), []
    if not kind.keeps_unknown:
        pruned = schema.prune(item, shape)
        unknown = schema.unknown_fields(item, pruned)
        warnings = [f'unknown field "{path}"' for path in unknown]
        if warnings and validation == "Strict":
            raise bad_request(f"strict decoding error: {', '.join(warnings)}")
        item = pruned
    if not kind.is_custom:
        item = _without_nulls(item)
        for cause in schema.validate(item, shape):
            if cause.reason == "FieldValueTypeInvalid":
                message = (
                    f'{kind.name} in version "{version or "v1"}" cannot be handled as a '
                    f"{kind.name}: {cause.field}: {cause.message}"
                )
                raise bad_request(message)
    item = schema.default(item, shape)
    if kind.name == "Pod":
        item = fill_pod(item)
    if kind.name == "Secret":
        item = _with_data(item)
    return item, warnings if validation == "Warn" else []


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _with_data(item: _Item) -> _Item:
    texts = item.get("stringData")
    if not texts:
        return item
    data = {k: base64.b64encode(v.encode()).decode() for k, v in texts.items()}
    found = {key: value for key, value in item.items() if key != "stringData"}
    return {**found, "data": {**(item.get("data") or {}), **data}}


def first_state(kind: Kind, item: _Item) -> _Item:
    """Returns a new object as it begins: without a status that others have to report."""
    left_out = (*_SERVER_FIELDS, "managedFields")
    metadata = {k: v for k, v in item["metadata"].items() if k not in left_out}
    item = {**item, "metadata": metadata}
    if kind.has_generation:
        metadata["generation"] = 1
    if kind.has_status and kind.name not in {"Node", "Pod"}:
        item.pop("status", None)
    if kind.name == "Namespace":
        item["status"] = {"phase": "Active"}
    return item


def next_state(kind: Kind, before: _Item, item: _Item, subresource: str) -> _Item:
    """Returns an object as an update leaves it: it changes only what it may change.

    Args:
        kind: Of the object.
        before: As it is.
        item: As somebody wants it.
        subresource: Through which; `status` changes the status alone, and `server`
            whatever it likes.
    """
    old, metadata = before["metadata"], dict(item["metadata"])
    for name in (*_SERVER_FIELDS, "managedFields", "resourceVersion"):
        metadata.pop(name, None)
        if name in old:
            metadata[name] = old[name]
    if subresource == "status":
        found = {key: value for key, value in before.items() if key != "status"}
        return {**found, "status": item["status"]} if "status" in item else found
    found = {**item, "metadata": metadata}
    if kind.has_status and subresource != "server":
        found.pop("status", None)
        if "status" in before:
            found["status"] = before["status"]
    left_out = {"metadata", "status"} if kind.has_status else {"metadata"}
    parts = [
        {k: v for k, v in one.items() if k not in left_out} for one in (before, found)
    ]
    if kind.has_generation and parts[0] != parts[1]:
        metadata["generation"] = old.get("generation", 0) + 1
    return found


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
    shape = kind.schema(version)
    causes = [*_metadata_causes(kind, item, before), *schema.validate(item, shape)]
    if not causes and kind.is_custom:
        causes += cel.broken_rules(item, before, shape)
    if (rules := _RULES.get(kind.name)) and not kind.is_custom:
        causes += rules(item, before)
    if causes:
        raise invalid(kind.group, kind.name, item["metadata"].get("name", ""), causes)


def _metadata_causes(kind: Kind, item: _Item, before: _Item | None) -> Iterator[Cause]:
    metadata = item["metadata"]
    name, labels = str(metadata["name"]), metadata.get("labels") or {}
    is_label = kind.name in {"Service", "Namespace"} and not kind.is_custom
    fits = (_LABEL if is_label else _NAME).fullmatch(name) and len(name) <= _MOST_NAME
    if before is None and kind.name not in _FREE_NAMES and not fits:
        form = "label must not contain dots, and" if is_label else "subdomain"
        message = (
            f'"{name}": a lowercase RFC 1123 {form} must consist of a-z, 0-9 and -'
        )
        yield wrong("Invalid", "metadata.name", message)
    if not isinstance(labels, dict):
        yield wrong("TypeInvalid", "metadata.labels", "must be of type object")
        return
    for key, value in labels.items():
        if not (_LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(str(value))):
            yield wrong(
                "Invalid", "metadata.labels", f'"{value}": no valid label, of {key}'
            )
    notes = (metadata.get("annotations") or {}).items()
    if sum(len(k) + len(str(v)) for k, v in notes) > _MOST_ANNOTATIONS:
        message = f"may not be more than {_MOST_ANNOTATIONS} bytes"
        yield wrong("TooLong", "metadata.annotations", message)
    owners = metadata.get("ownerReferences") or ()
    if sum(bool(one.get("controller")) for one in owners) > 1:
        yield wrong(
            "Invalid", "metadata.ownerReferences", "only one may be the controller"
        )
    finalizers = metadata.get("finalizers") or ()
    for at, one in enumerate(finalizers):
        if "/" not in one and one != "kubernetes" and not kind.is_custom:
            message = f'"{one}": name is not fully qualified'
            yield wrong("Invalid", f"metadata.finalizers[{at}]", message)
    old = (before or {}).get("metadata") or {}
    added = set(finalizers) - set(old.get("finalizers") or ())
    if "deletionTimestamp" in old and added:
        message = (
            "no new finalizers can be added if the object is being deleted, found new "
            f"finalizers {sorted(added)}"
        )
        # A server looks at the metadata of an update twice, and says so twice.
        yield from [wrong("Forbidden", "metadata.finalizers", message)] * 2


def _service_causes(item: _Item, before: _Item | None) -> Iterator[Cause]:
    spec, old = item["spec"], (before or {}).get("spec") or {}
    address, field = spec.get("clusterIP"), "spec.clusterIPs[0]"
    if not spec.get("ports") and address != "None":
        yield wrong("Required", "spec.ports")
    if old.get("clusterIP", address) != address:
        yield wrong("Invalid", field, f'["{address}"]: may not change once set')
    elif address not in {None, "", "None"} and not re.fullmatch(
        r"[\d.]+|.*:.*", address
    ):
        yield wrong("Invalid", field, f'"{address}": must be a valid IP address')


def _event_causes(item: _Item, _: _Item | None) -> Iterator[Cause]:
    if "eventTime" not in item:
        if "firstTimestamp" not in item:
            yield wrong("Required", "eventTime")
        return
    for field in ("reportingComponent", "reportingInstance", "action", "reason"):
        if not item.get(field):
            yield wrong("Required", field.replace("Component", "Controller"))
    if item.get("type") not in {"Normal", "Warning"}:
        yield wrong("Invalid", "type", f'"": has invalid value: {item.get("type")}')
    if len(item.get("message", "").encode()) > _MOST_NOTE:
        message = f'"": can have at most {_MOST_NOTE} characters'
        yield wrong("Invalid", "message", message)


_RULES: dict[str, Callable[[_Item, _Item | None], Iterator[Cause]]] = {
    "Pod": pod_causes,
    "Service": _service_causes,
    "Event": _event_causes,
    "CustomResourceDefinition": definition_causes,
}
