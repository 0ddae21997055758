"""Events that the cluster's own parts record about objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import times
from drivetrain_cluster_double.errors import StatusError

if TYPE_CHECKING:
    from drivetrain_cluster_double.api import Api

__all__ = ["record_event"]


def record_event(
    api: Api,
    about: dict[str, Any],
    reason: str,
    text: str,
    kind: str = "Normal",
    source: str = "default-scheduler",
) -> None:
    """Records an event; does nothing if the object's namespace is gone.

    Args:
        api: Of the cluster.
        about: The object.
        reason: A word for programs.
        text: For people.
        kind: `Normal` or `Warning`.
        source: Who says it.
    """
    metadata, now = about["metadata"], times.format_time(times.now())
    namespace = metadata.get("namespace", "default")
    item = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{metadata['name'][:40]}.",
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": namespace,
            "uid": metadata["uid"],
        },
        "reason": reason,
        "message": text,
        "type": kind,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": source},
        "reportingComponent": source,
    }
    try:
        api.create(api.catalog.named("Event", "v1"), namespace, item)
    except StatusError:
        return
