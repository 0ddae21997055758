"""What pods must hold, and what is filled in that no schema can know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drivetrain_cloud.kubernetes.quantities import read_quantity
from drivetrain_cluster_double.errors import Cause, not_done, wrong

_Item = dict[str, Any]

# What would change what becomes of a pod, and is not done here.
_NOT_DONE = ("activeDeadlineSeconds", "affinity", "priorityClassName")
# What may change in the spec of a pod that is there.
_CHANGES = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
_FIELDS = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName"),
    *("spec.serviceAccountName", "status.podIP", "status.podIPs", "status.hostIP"),
    *("metadata.labels", "metadata.annotations"),
)
_FIXED = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to "
    "be set to 1 if it was previously negative)"
)


def fill_pod(item: _Item) -> _Item:
    """Returns a pod with what follows from the rest of it.

    Raises:
        StatusError: It asks for something that is not done here (501).
    """
    spec = item.get("spec") or {}
    for name in _NOT_DONE:
        if spec.get(name):
            raise not_done(f"spec.{name} of a pod")
    containers = []
    for one in spec.get("containers") or ():
        resources = dict(one.get("resources") or {})
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        image = str(one.get("image", ""))
        is_moving = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
        policy = {"imagePullPolicy": "Always" if is_moving else "IfNotPresent"}
        containers.append({**policy, **one, "resources": resources})
    if item.get("status") or not containers:
        return {**item, "spec": {**spec, "containers": containers}}
    parts = [one["resources"] for one in containers]
    quality = "Burstable" if any(parts) else "BestEffort"
    if all(one.get("limits") and one["limits"] == one["requests"] for one in parts):
        quality = "Guaranteed"
    status = {"phase": "Pending", "qosClass": quality}
    return {**item, "spec": {**spec, "containers": containers}, "status": status}


def pod_causes(item: _Item, before: _Item | None) -> Iterator[Cause]:
    """Yields what is wrong with a pod.

    Args:
        item: The pod.
        before: As it was; None when it is created.
    """
    spec, names = item.get("spec") or {}, set()
    if "spec" in item and not spec.get("containers"):
        yield wrong("Required", "spec.containers")
    volumes = {one.get("name") for one in spec.get("volumes") or ()}
    for at, container in enumerate(spec.get("containers") or ()):
        path, name = f"spec.containers[{at}]", container.get("name")
        if name in names:
            yield wrong("Duplicate", f"{path}.name", f'"{name}"')
        names.add(name)
        yield from _container_causes(container, path, volumes)
    for at, one in enumerate(spec.get("tolerations") or ()):
        if "tolerationSeconds" in one and one.get("effect") != "NoExecute":
            yield wrong(
                "Invalid", f"spec.tolerations[{at}].effect", "must be 'NoExecute'"
            )
    if before is not None and _fixed(spec) != _fixed(before["spec"]):
        yield wrong("Forbidden", "spec", _FIXED)


def _fixed(spec: _Item) -> _Item:
    found = {key: value for key, value in spec.items() if key not in _CHANGES}
    for name in {"containers", "initContainers"} & spec.keys():
        changes = {"image": "", "imagePullPolicy": ""}
        found[name] = [{**one, **changes} for one in spec[name]]
    return found


def _container_causes(
    container: _Item, path: str, volumes: set[Any]
) -> Iterator[Cause]:
    if not container.get("image"):
        yield wrong("Required", f"{path}.image")
    for at, one in enumerate(container.get("volumeMounts") or ()):
        if one.get("name") not in volumes:
            yield wrong("NotFound", f"{path}.volumeMounts[{at}].name", one.get("name"))
    for at, one in enumerate(container.get("env") or ()):
        source, where = one.get("valueFrom") or {}, f"{path}.env[{at}].valueFrom"
        if source and one.get("value"):
            yield wrong(
                "Invalid", where, "may not be specified when `value` is not empty"
            )
        field = (source.get("fieldRef") or {}).get("fieldPath", "metadata.name")
        if field.partition("[")[0] not in _FIELDS:
            yield wrong(
                "Invalid", f"{where}.fieldRef.fieldPath", f"{field} is not supported"
            )
    if "tcpSocket" not in (container.get("readinessProbe") or {"tcpSocket": {}}):
        raise not_done(f"{path}.readinessProbe without tcpSocket")
    resources, path = container.get("resources") or {}, f"{path}.resources"
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if "/" in name and not read_quantity(amount).is_integer():
                yield wrong("Invalid", f"{path}.{part}[{name}]", "must be an integer")
    for name, amount in requests.items():
        if name not in limits and "/" in name:
            message = "Limit must be set for non overcommitable resources"
            yield wrong("Required", f"{path}.limits", message)
        elif read_quantity(amount) > read_quantity(limits.get(name, amount)):
            message = f"{amount}: must be less than or equal to {name} limit of {limits[name]}"
            yield wrong("Invalid", f"{path}.requests", message)
