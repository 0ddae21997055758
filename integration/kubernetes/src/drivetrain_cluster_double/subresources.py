"""Parts of objects that are resources of their own: scale, eviction, binding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import times
from drivetrain_cluster_double.errors import (
    Cause,
    bad_request,
    conflict,
    invalid,
    path_not_found,
    success,
    too_many_requests,
)
from drivetrain_cluster_double.patch import json_patch, merge_patch
from drivetrain_cluster_double.removal import DeleteOptions
from drivetrain_cluster_double.selectors import selector_of
from drivetrain_cluster_double.table import value_at

if TYPE_CHECKING:
    from drivetrain_cluster_double.api import Api, WriteOptions
    from drivetrain_cluster_double.kinds import Kind
    from drivetrain_cluster_double.store import Row

__all__ = ["bind", "evict", "read_scale", "set_condition", "write_scale"]

_Item = dict[str, Any]


def set_condition(item: _Item, condition: _Item) -> _Item:
    """Returns an object with a condition of its status, in the place of one of its type.

    The time of the last transition stands if the status of the condition does.
    """
    status = item.get("status") or {}
    others, now = [], times.format_time(times.now())
    for one in status.get("conditions") or ():
        if one["type"] != condition["type"]:
            others.append(one)
        elif one.get("status") == condition["status"]:
            now = one.get("lastTransitionTime", now)
    found = [*others, {"lastTransitionTime": now, **condition}]
    return {**item, "status": {**status, "conditions": found}}


def read_scale(kind: Kind, version: str, item: _Item) -> _Item:
    """Returns the scale of an object.

    Raises:
        StatusError: Its kind has none.
    """
    paths = kind.scale.get(version)
    if paths is None:
        raise path_not_found()
    if paths.selector == "@matchLabels":
        labels = value_at(item, ".spec.selector.matchLabels") or {}
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
    else:
        selector = value_at(item, paths.selector) if paths.selector else ""
    metadata = item["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: _Item = {"replicas": value_at(item, paths.status_replicas) or 0}
    if selector:
        status["selector"] = selector
    replicas = value_at(item, paths.spec_replicas)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {} if replicas is None else {"replicas": replicas},
        "status": status,
    }


def write_scale(
    api: Api,
    kind: Kind,
    row: Row,
    change: Any,
    patch_type: str,
    options: WriteOptions,
) -> Row:
    """Sets the replicas of an object through its scale; returns the object.

    Args:
        api: Of the cluster; the caller holds its store's lock.
        kind: Of the object.
        row: The object.
        change: The scale, or a patch of it.
        patch_type: Of the patch; empty if the scale is whole.
        options: How it is written.

    Raises:
        StatusError: Its kind has no scale, or the number is out of range.
    """
    version = options.version or kind.versions[0]
    scale = read_scale(kind, version, row.item)
    if patch_type == "application/json-patch+json":
        wanted = json_patch(scale, change)
    elif patch_type:
        wanted = merge_patch(scale, change)
    else:
        wanted = change
    parts = (wanted.get("spec"), wanted.get("metadata")) if _is_map(wanted) else ("",)
    if not all(part is None or _is_map(part) for part in parts):
        message = f"a scale is an object with spec.replicas, got {str(wanted)[:60]}"
        raise bad_request(message)
    replicas = (wanted.get("spec") or {}).get("replicas", 0)
    name = row.item["metadata"]["name"]
    if not isinstance(replicas, int) or replicas < 0:
        message = f"Invalid value: {replicas}: must be greater than or equal to 0"
        cause = Cause("FieldValueInvalid", message, "spec.replicas")
        message = "autoscaling"
        raise invalid(message, "Scale", name, [cause])
    revision = (wanted.get("metadata") or {}).get("resourceVersion")
    if revision and revision != row.item["metadata"]["resourceVersion"]:
        raise conflict(kind.group, kind.plural, name)
    path = kind.scale[version].spec_replicas.strip(".").split(".")
    patch: Any = replicas
    for part in reversed(path):
        patch = {part: patch}
    namespace = row.item["metadata"].get("namespace", "")
    merge = "application/merge-patch+json"
    return api.patch(kind, namespace, name, patch, merge, options)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def bind(api: Api, kind: Kind, namespace: str, name: str, binding: _Item) -> _Item:
    """Gives a pod to a node.

    Raises:
        StatusError: It has one, or is being deleted.
    """
    target = binding.get("target")
    node = target.get("name") if isinstance(target, dict) else None
    if not isinstance(node, str) or not node:
        message = "a binding names the node: target.name is missing"
        raise bad_request(message)

    def edit(item: _Item) -> _Item:
        there = item["spec"].get("nodeName")
        if there:
            why = f'pod {name} is already assigned to node "{there}"'
            message = ""
            raise conflict(message, "pods/binding", name, why)
        if "deletionTimestamp" in item["metadata"]:
            why = f"pod {name} is being deleted, cannot be assigned to a host"
            message = ""
            raise conflict(message, "pods/binding", name, why)
        item = {**item, "spec": {**item["spec"], "nodeName": node}}
        return set_condition(item, {"type": "PodScheduled", "status": "True"})

    api.change(kind, namespace, name, edit)
    return {**success(name, "", "pods", ""), "code": 201}


def evict(api: Api, kind: Kind, namespace: str, name: str, eviction: _Item) -> _Item:
    """Deletes a pod unless a budget of disruptions forbids it.

    Raises:
        StatusError: The pod is not there, or a budget forbids it.
    """
    with api.store.lock:
        pod = api.get(kind, namespace, name).item
        if pod.get("status", {}).get("phase") not in {"Succeeded", "Failed", "Pending"}:
            _check_budgets(api, pod)
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        options = DeleteOptions.read(eviction.get("deleteOptions") or {}, {})
        if not options.is_dry_run:
            api.change(
                kind, namespace, name, lambda item: set_condition(item, condition)
            )
        api.delete(kind, namespace, name, options)
    found = success(name, "", "pods", "")
    return {**found, "code": 201}


def _check_budgets(api: Api, pod: _Item) -> None:
    metadata = pod["metadata"]
    pods = api.store.table(("", "pods"))
    for key, row in api.store.table(("policy", "poddisruptionbudgets")).rows.items():
        spec = row.item.get("spec") or {}
        selector = selector_of(spec.get("selector"))
        if key.namespace != metadata["namespace"] or selector is None:
            continue
        if not selector.matches(pod):
            continue
        there = [r.item for _, r in pods.find(key.namespace, selector)]
        healthy = [one for one in there if _is_ready(one)]
        needed = _needed(spec, len(there))
        if len(healthy) - 1 < needed:
            message = (
                f"The disruption budget {key.name} needs {needed} healthy pods and has "
                f"{len(healthy)} currently"
            )
            cause = Cause("DisruptionBudget", message, "")
            why = "Cannot evict pod as it would violate the pod's disruption budget."
            raise too_many_requests(why, 10, [cause])


def _is_ready(pod: _Item) -> bool:
    ready = value_at(pod, '.status.conditions[?(@.type=="Ready")].status')
    return ready == "True" and "deletionTimestamp" not in pod["metadata"]


def _needed(spec: _Item, num_pods: int) -> int:
    """Returns how many pods must be healthy."""
    if "maxUnavailable" in spec:
        return num_pods - _portion(spec["maxUnavailable"], num_pods)
    return _portion(spec.get("minAvailable", 1), num_pods)


def _portion(value: int | str, whole: int) -> int:
    if isinstance(value, str):
        return math.ceil(int(value.rstrip("%")) * whole / 100)
    return value
