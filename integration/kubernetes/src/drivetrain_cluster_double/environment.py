"""The environment variables and the command of a pod's main process."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from drivetrain_cluster_double.table import value_at
from drivetrain_core import DrivetrainError

_Item = dict[str, Any]
_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][\w.-]*)\))")


class LaunchError(DrivetrainError, LookupError):
    """What a pod's main process needs is missing."""


class Launch(NamedTuple):
    """How a process is started.

    Attributes:
        command: The program and its arguments.
        variables: Of its environment, those of the pod alone.
    """

    command: list[str]
    variables: dict[str, str]


def plan_launch(
    pod: _Item, services: Mapping[str, str], find: Callable[[str], _Item | None]
) -> Launch:
    """Decides how the main process of a pod is started.

    Args:
        pod: The pod; its first container is the main one.
        services: What `service_variables` says.
        find: Returns a Secret by its name, or None.

    Raises:
        LaunchError: The command, or something that a variable refers to, is missing.
    """
    container = pod["spec"]["containers"][0]
    if "envFrom" in container:
        raise LaunchError("the double does not do envFrom")
    known = dict(services)
    for one in container.get("env") or ():
        if "valueFrom" in one:
            value = _value_from(one["valueFrom"], pod, find)
        else:
            value = _expanded(one.get("value") or "", known)
        if value is not None:
            known[one["name"]] = value
    if not container.get("command"):
        message = (
            f"the container {container['name']} has no command: the double runs no image, "
            "so that the command must be given"
        )
        raise LaunchError(message)
    command = [*container["command"], *(container.get("args") or ())]
    return Launch([_expanded(part, known) for part in command], known)


def _expanded(text: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        # What is not known stays as it is written.
        return known.get(found[2], found[0])

    return _REFERENCE.sub(value, text)


def _value_from(
    source: _Item, pod: _Item, find: Callable[[str], _Item | None]
) -> str | None:
    if "fieldRef" in source:
        path = source["fieldRef"]["fieldPath"]
        value = "127.0.0.1" if path == "status.hostIP" else value_at(pod, path)
        return "" if value is None else str(value)
    if "secretKeyRef" not in source:
        raise LaunchError(f"the double does not do a variable from {list(source)}")
    wanted = source["secretKeyRef"]
    data = (find(wanted["name"]) or {}).get("data") or {}
    if wanted["key"] in data:
        return base64.b64decode(data[wanted["key"]]).decode(errors="replace")
    if wanted.get("optional"):
        return None
    raise LaunchError(f"couldn't find key {wanted['key']} in Secret {wanted['name']}")


def service_variables(services: Iterable[_Item]) -> dict[str, str]:
    """Returns the variables that tell where services are.

    Example:
        >>> spec = {"clusterIP": "127.2.0.2", "ports": [{"port": 80}]}
        >>> service_variables([{"metadata": {"name": "job-master"}, "spec": spec}])
        {'JOB_MASTER_SERVICE_HOST': '127.2.0.2', 'JOB_MASTER_SERVICE_PORT': '80'}
    """
    found = {}
    for item in services:
        spec = item["spec"]
        address, ports = spec.get("clusterIP"), spec.get("ports") or ()
        if not address or address == "None" or not ports:
            continue
        name = item["metadata"]["name"].upper().replace("-", "_")
        found[f"{name}_SERVICE_HOST"] = address
        found[f"{name}_SERVICE_PORT"] = str(ports[0]["port"])
    return found
