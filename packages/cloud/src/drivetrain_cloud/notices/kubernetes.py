"""What a node or a pod of Kubernetes says about its end, as the API server gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_cloud.notices.sighting import (
    BadAnswerError,
    Sighting,
    seconds_until,
    wall_time,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# Taints that say that a node goes, with the seconds it has from then on: what the
# termination handler of AWS, the cluster autoscaler, Karpenter and Kubernetes put there.
_TAINTS: dict[str, float] = {
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/scheduled-maintenance": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": 120.0,
    "ToBeDeletedByClusterAutoscaler": 60.0,
    "karpenter.sh/disrupted": 60.0,
    "cloud.google.com/impending-node-termination": 30.0,
    "node.kubernetes.io/out-of-service": 0.0,
}
_RISKS: dict[str, float] = {
    "aws-node-termination-handler/rebalance-recommendation": 120.0
}
_DEFAULT_GRACE_S = 30.0


def sighting_of_node(
    node: Mapping[str, Any], *, date: str, grace_s: float | None = None
) -> Sighting | None:
    """Returns what a node's taints say about its end; None if they say nothing.

    Args:
        node: As the API server gives it.
        date: The server's time now, as in its answers; a taint says when it was put.
        grace_s: What a node has from its taint on, where that is known better.

    Raises:
        BadAnswerError: It is not the form of a node.

    Example:
        >>> taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule",
        ...          "timeAdded": "2026-01-05T18:00:00Z"}
        >>> found = sighting_of_node({"spec": {"taints": [taint]}},
        ...                          date="Mon, 05 Jan 2026 18:00:20 GMT")
        >>> found.remaining_s, found.reason
        (40.0, 'the node has the taint karpenter.sh/disrupted')
    """
    found = None
    for taint in _list(node, "spec", "taints"):
        key = str(taint.get("key"))
        is_certain = key in _TAINTS
        if not is_certain and key not in _RISKS:
            continue
        seconds = _TAINTS[key] if is_certain else _RISKS[key]
        if grace_s is not None:
            seconds = grace_s
        added = taint.get("timeAdded")
        if isinstance(added, str) and added:
            # Time that has passed since then, on the server's clock; a taint may stay
            # on a node for months.
            passed_s = (wall_time(date) - wall_time(added)).total_seconds()
            seconds = max(0.0, seconds - max(0.0, passed_s))
        one = Sighting(
            remaining_s=seconds,
            reason=f"the node has the taint {key}",
            is_certain=is_certain,
        )
        if found is None or (not one.is_certain, one.remaining_s) < (
            not found.is_certain,
            found.remaining_s,
        ):
            found = one
    return found


def sighting_of_pod(pod: Mapping[str, Any], *, date: str) -> Sighting | None:
    """Returns what a pod's state says about its end; None if it says nothing.

    A pod that is evicted, preempted or deleted has the time until its deletion.

    Args:
        pod: As the API server gives it.
        date: The server's time now, as in its answers.

    Raises:
        BadAnswerError: It is not the form of a pod.

    Example:
        >>> pod = {"metadata": {"deletionTimestamp": "2026-01-05T18:00:30Z"},
        ...        "status": {"conditions": [{"type": "DisruptionTarget",
        ...            "status": "True", "reason": "EvictionByEvictionAPI"}]}}
        >>> found = sighting_of_pod(pod, date="Mon, 05 Jan 2026 18:00:00 GMT")
        >>> found.remaining_s, found.reason
        (30.0, 'the pod ends: EvictionByEvictionAPI')
    """
    reason = ""
    for condition in _list(pod, "status", "conditions"):
        is_target = condition.get("type") == "DisruptionTarget"
        if is_target and condition.get("status") == "True":
            reason = str(condition.get("reason") or "DisruptionTarget")
    end = _mapping(pod, "metadata").get("deletionTimestamp")
    if isinstance(end, str) and end:
        seconds = seconds_until(end, date=date)
        why = reason or "it is deleted"
        return Sighting(remaining_s=seconds, reason=f"the pod ends: {why}")
    if not reason:
        return None
    grace = _mapping(pod, "spec").get("terminationGracePeriodSeconds")
    seconds = float(grace) if isinstance(grace, int | float) else _DEFAULT_GRACE_S
    return Sighting(remaining_s=max(0.0, seconds), reason=f"the pod ends: {reason}")


def _mapping(thing: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = thing.get(key) or {}
    if not isinstance(found, dict):
        message = f"expected an object for {key}, got {found!r:.80}"
        raise BadAnswerError(message)
    return found


def _list(thing: Mapping[str, Any], key: str, inner: str) -> list[dict[str, Any]]:
    found = _mapping(thing, key).get(inner) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        message = f"expected a list of objects for {key}.{inner}, got {found!r:.80}"
        raise BadAnswerError(message)
    return found
