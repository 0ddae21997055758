"""Nodes: how they are described, and what a reclaim does to them."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import times
from drivetrain_cluster_double.subresources import set_condition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["RECLAIM_TAINT", "describe_node", "with_reclaim", "without_reclaim"]

RECLAIM_TAINT = "cloud.google.com/impending-node-termination"
"""The taint of a node that its provider is going to take back."""

_Item = dict[str, Any]


def describe_node(
    name: str,
    capacity: Mapping[str, str],
    labels: Mapping[str, str],
    taints: Sequence[Mapping[str, str]] = (),
) -> _Item:
    """Returns a node that is ready.

    Args:
        name: Of the node.
        capacity: How much of what it has.
        labels: Beside those that every node has.
        taints: What pods have to tolerate.
    """
    usual = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    item: _Item = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**usual, **labels}},
        "spec": {"providerID": f"double://{name}"},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": _info(name),
        },
    }
    if taints:
        item["spec"]["taints"] = [dict(taint) for taint in taints]
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    return set_condition(item, ready)


def _info(name: str) -> _Item:
    # Clients refuse a node that lacks one of them.
    return {
        "architecture": platform.machine(),
        "bootID": name,
        "containerRuntimeVersion": "double://1",
        "kernelVersion": platform.release(),
        "kubeProxyVersion": "v1.34.0",
        "kubeletVersion": "v1.34.0",
        "machineID": name,
        "operatingSystem": "linux",
        "osImage": "Linux",
        "systemUUID": name,
    }


def with_reclaim(node: _Item) -> _Item:
    """Returns a node with the taint of a reclaim."""
    spec = node.get("spec") or {}
    taint = {
        "key": RECLAIM_TAINT,
        "effect": "NoSchedule",
        "timeAdded": times.format_time(times.now()),
    }
    return {**node, "spec": {**spec, "taints": [*_others(spec), taint]}}


def without_reclaim(node: _Item) -> _Item:
    """Returns a node without the taint of a reclaim."""
    spec = dict(node.get("spec") or {})
    kept = _others(spec)
    spec.pop("taints", None)
    if kept:
        spec["taints"] = kept
    return {**node, "spec": spec}


def _others(spec: _Item) -> list[Any]:
    return [one for one in spec.get("taints") or () if one["key"] != RECLAIM_TAINT]
