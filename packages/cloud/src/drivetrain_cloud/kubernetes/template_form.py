"""The form of a pod's template, as far as the operator puts something into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_template(template: Mapping[str, Any], where: str) -> None:
    """Checks what the definition of the kind leaves to the API server's own of pods.

    Args:
        template: Of a pod.
        where: The path of it, for people.

    Raises:
        ProgramError: A field is not of the form that it has in a pod.

    Example:
        >>> check_template({"spec": {"nodeSelector": "gpu"}}, "template")
        Traceback (most recent call last):
        drivetrain_core...ProgramError: template.spec.nodeSelector must be an object, ...
    """
    data = _object(template, "metadata", where)
    for field in ("labels", "annotations"):
        _object(data, field, f"{where}.metadata")
    spec = _object(template, "spec", where)
    where = f"{where}.spec"
    _object(spec, "nodeSelector", where)
    for field in ("tolerations", "volumes"):
        _objects(spec, field, where)
    containers = _objects(spec, "containers", where)
    if not containers:
        message = f"{where}.containers must not be empty"
        raise ProgramError(message)
    for number, container in enumerate(containers):
        path = f"{where}.containers[{number}]"
        for one in _objects(container, "env", path):
            if not isinstance(one.get("name"), str):
                message = f"{path}.env: each needs a name, got {one!r:.80}"
                raise ProgramError(message)
        _objects(container, "volumeMounts", path)
        resources = _object(container, "resources", path)
        for field in ("requests", "limits"):
            _object(resources, field, f"{path}.resources")


def _object(item: Mapping[str, Any], field: str, where: str) -> Mapping[str, Any]:
    found = item.get(field)
    if found is None:
        return {}
    if not isinstance(found, dict):
        message = f"{where}.{field} must be an object, got {found!r:.80}"
        raise ProgramError(message)
    return found


def _objects(item: Mapping[str, Any], field: str, where: str) -> list[dict[str, Any]]:
    found = item.get(field)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        message = f"{where}.{field} must be a list of objects, got {found!r:.80}"
        raise ProgramError(message)
    return found
