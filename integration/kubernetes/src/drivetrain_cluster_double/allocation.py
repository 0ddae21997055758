"""What the server fills in that no schema can know: addresses, priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double.errors import forbidden
from drivetrain_cluster_double.store import Key

if TYPE_CHECKING:
    from drivetrain_cluster_double.store import Store

__all__ = ["Allocation", "admit_pod"]

_Item = dict[str, Any]
# What every cluster has.
_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


class Allocation:
    """Gives out addresses, each once.

    Services have addresses of 127.2.0.0/16, which any process on Linux may bind.
    """

    def __init__(self) -> None:
        self._num_services = 0

    def address_service(self, item: _Item) -> _Item:
        """Returns a new service with an address, unless it has one or wants none."""
        spec = item.get("spec") or {}
        if spec.get("type") == "ExternalName" or spec.get("clusterIP"):
            return item
        self._num_services += 1
        number = self._num_services % 65_000 + 1
        address = f"127.2.{number // 250}.{number % 250 + 1}"
        spec = {**spec, "clusterIP": address, "clusterIPs": [address]}
        return {**item, "spec": spec}


def admit_pod(store: Store, item: _Item) -> _Item:
    """Returns a new pod with its priority.

    Raises:
        StatusError: Its priority class or its service account is not there.
    """
    metadata, spec = item["metadata"], item["spec"]
    account = spec.get("serviceAccountName", "default")
    namespace = metadata["namespace"]
    key = Key(namespace, account)
    if account != "default" and store.get(("", "serviceaccounts"), key) is None:
        why = (
            f"error looking up service account {namespace}/{account}: "
            f'serviceaccount "{account}" not found'
        )
        message = ""
        raise forbidden(message, "pods", metadata["name"], why)
    name = spec.get("priorityClassName", "")
    if not name:
        return {**item, "spec": {**spec, "priority": spec.get("priority", 0)}}
    priority = _PRIORITIES.get(name)
    if priority is None:
        row = store.get(("scheduling.k8s.io", "priorityclasses"), Key("", name))
        if row is None:
            why = f"no PriorityClass with name {name} was found"
            message = ""
            raise forbidden(message, "pods", metadata["name"], why)
        priority = int(row.item.get("value", 0))
        policy = row.item.get("preemptionPolicy", "PreemptLowerPriority")
        spec = {"preemptionPolicy": policy, **spec}
    return {**item, "spec": {**spec, "priority": priority}}
