"""The file of a job that names its hosts, as a discovery script of Horovod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDER = "/etc/edl"
FILE = "discover_hosts.sh"
_VOLUME = "drivetrain-hosts"


def hosts_name(job: Mapping[str, Any]) -> str:
    """Returns the name of the ConfigMap in which the file is."""
    return f"{job['metadata']['name']}-config"


def host_script(workers: Iterable[str], slots: int) -> str:
    """Returns the file: a script that prints a line for each host.

    Args:
        workers: Names of pods.
        slots: Processes of each.

    Example:
        >>> print(host_script(["a-0", "a-1"], 2), end="")
        #!/bin/sh
        echo a-0:2
        echo a-1:2
    """
    lines = [f"echo {name}:{slots}" for name in workers]
    return "\n".join(["#!/bin/sh", *lines]) + "\n"


def mount_hosts(template: dict[str, Any], name: str) -> None:
    """Lets the first container of a pod read the file, unless something else is there.

    Args:
        template: Of the pod; it is changed.
        name: Of the ConfigMap.
    """
    spec = template["spec"]
    container = spec["containers"][0]
    mounts = container.setdefault("volumeMounts", [])
    if any(one.get("mountPath", "").rstrip("/") == FOLDER for one in mounts):
        return
    mounts.append({"name": _VOLUME, "mountPath": FOLDER})
    source = {"name": name, "defaultMode": 0o755, "optional": True}
    spec.setdefault("volumes", []).append({"name": _VOLUME, "configMap": source})
