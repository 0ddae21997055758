"""The environment variables and the command of a pod's main process."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double.table import value_at
from drivetrain_core import DrivetrainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

__all__ = ["Launch", "LaunchError", "empty_folders", "plan_launch", "service_variables"]

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
    pod: _Item, services: Mapping[str, str], find: Callable[[str, str], _Item | None]
) -> Launch:
    """Decides how the main process of a pod is started.

    Args:
        pod: The pod; its first container is the main one.
        services: What `service_variables` says.
        find: Returns a ConfigMap or a Secret by its kind and name, or None.

    Raises:
        LaunchError: The command, or something that a variable refers to, is missing.
    """
    container = pod["spec"]["containers"][0]
    known = dict(services)
    for source in container.get("envFrom") or ():
        known |= _all_of(source, find)
    for one in container.get("env") or ():
        value = one.get("value")
        if "valueFrom" in one:
            value = _value_from(one["valueFrom"], pod, container, find)
            if value is None:
                continue
            known[one["name"]] = value
        else:
            known[one["name"]] = _expanded(value or "", known)
    command = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not container.get("command"):
        message = (
            f"the container {container['name']} has no command: the double runs no image, "
            "so that the command must be given"
        )
        raise LaunchError(message)
    return Launch([_expanded(part, known) for part in command], known)


def empty_folders(pod: _Item, folder: Path) -> dict[str, Path]:
    """Returns where the empty volumes of a pod lie, by where its main process has them.

    They last as long as the pod; what its variables say of them is told anew.

    Args:
        pod: The pod.
        folder: Of the pod, on this machine.
    """
    empty = {v["name"] for v in pod["spec"].get("volumes") or () if "emptyDir" in v}
    mounts = pod["spec"]["containers"][0].get("volumeMounts") or ()
    return {
        one["mountPath"]: folder / f"volume-{one['name']}"
        for one in mounts
        if one["name"] in empty
    }


def _expanded(text: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        # What is not known stays as it is written.
        return known.get(found[2], found[0])

    return _REFERENCE.sub(value, text)


def _value_from(
    source: _Item,
    pod: _Item,
    container: _Item,
    find: Callable[[str, str], _Item | None],
) -> str | None:
    if "fieldRef" in source:
        path = source["fieldRef"]["fieldPath"]
        if path == "status.hostIP":
            return "127.0.0.1"
        value = value_at(pod, path)
        return "" if value is None else str(value)
    if "resourceFieldRef" in source:
        value = value_at(
            container.get("resources") or {}, source["resourceFieldRef"]["resource"]
        )
        return "0" if value is None else str(value)
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if field not in source:
            continue
        wanted = source[field]
        found = _data(find(kind, wanted["name"])).get(wanted["key"])
        if found is None and not wanted.get("optional"):
            message = f"couldn't find key {wanted['key']} in {kind} {wanted['name']}"
            raise LaunchError(message)
        return found
    message = f"a variable comes from {list(source)}, which the double does not know"
    raise LaunchError(message)


def _all_of(source: _Item, find: Callable[[str, str], _Item | None]) -> dict[str, str]:
    prefix = source.get("prefix", "")
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if field not in source:
            continue
        item = find(kind, source[field]["name"])
        if item is None and not source[field].get("optional"):
            message = f'{kind.lower()} "{source[field]["name"]}" not found'
            raise LaunchError(message)
        return {f"{prefix}{key}": value for key, value in _data(item).items()}
    return {}


def _data(item: _Item | None) -> dict[str, str]:
    if item is None:
        return {}
    data: dict[str, str] = item.get("data") or {}
    if item["kind"] != "Secret":
        return data
    decoded = {k: base64.b64decode(v).decode(errors="replace") for k, v in data.items()}
    return decoded | (item.get("stringData") or {})


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
