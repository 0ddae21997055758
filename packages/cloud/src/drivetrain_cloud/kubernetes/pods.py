"""What a pod says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

JOB_LABEL = "drivetrain.dev/job"
ROLE_LABEL = "drivetrain.dev/role"
NUMBER_LABEL = "drivetrain.dev/number"
MARKET_LABEL = "drivetrain.dev/market"
LEAVING = "drivetrain.dev/leaving"
"""An annotation: the worker was asked to leave, and why."""
LEAVE_BY = "drivetrain.dev/leave-by"
"""An annotation: when the pod of a worker that leaves is deleted at the latest."""
TOLD_BY = "drivetrain.dev/told-by"
"""An annotation: UID of the pod of the master that has told the worker to leave."""

# Anybody may write a label: names of pods made after it must not become too long.
_MOST_DIGITS = 9
_Item = dict[str, Any]


def has_condition(item: Mapping[str, Any], kind: str, status: str = "True") -> bool:
    """Whether an object has a condition.

    Example:
        >>> pod = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        >>> has_condition(pod, "Ready"), has_condition(pod, "Ready", "False")
        (True, False)
    """
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one["type"] == kind and one["status"] == status for one in conditions)


def condition(kind: str, reason: str, message: str, *, holds: bool = True) -> _Item:
    """Returns a condition, as the status of an object has it.

    Args:
        kind: What it says.
        reason: Why, in a word.
        message: Why, in a sentence.
        holds: Whether it is so.
    """
    status = "True" if holds else "False"
    return {"type": kind, "status": status, "reason": reason, "message": message}


def controller_of(item: Mapping[str, Any]) -> _Item | None:
    """Returns the owner that controls an object, or None."""
    for owner in item["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            found: _Item = owner
            return found
    return None


def controls(owner: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Whether an object is controlled by another one."""
    found = controller_of(item)
    return found is not None and found["uid"] == owner["metadata"]["uid"]


def role_of(pod: Mapping[str, Any]) -> str:
    """Returns the role of a pod, empty for none."""
    return str((pod["metadata"].get("labels") or {}).get(ROLE_LABEL, ""))


def number_of(pod: Mapping[str, Any]) -> int:
    """Returns the number of a pod among those of its role; -1 for none."""
    text = (pod["metadata"].get("labels") or {}).get(NUMBER_LABEL, "")
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else -1


def is_on_demand(pod: Mapping[str, Any]) -> bool:
    """Whether its node is one that is not taken away."""
    return (pod["metadata"].get("labels") or {}).get(MARKET_LABEL) == "on-demand"


def phase_of(pod: Mapping[str, Any]) -> str:
    """Returns its phase."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_terminating(pod: Mapping[str, Any]) -> bool:
    """Whether it is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def _agent(pod: Mapping[str, Any]) -> _Item:
    """Returns the status of the first container, empty while there is none."""
    containers: Any = (pod.get("spec") or {}).get("containers") or ({},)
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    name = containers[0].get("name")
    return next((one for one in statuses if one.get("name") == name), {})


def has_gone(pod: Mapping[str, Any]) -> bool:
    """Whether all of its processes have ended."""
    return phase_of(pod) in {"Succeeded", "Failed"}


def has_ended(pod: Mapping[str, Any], phase: str = "") -> bool:
    """Whether its first container has ended for good, in a phase if one is given.

    Containers beside it, which send logs or carry calls, may run on.

    Example:
        >>> ended = {"name": "a", "state": {"terminated": {"exitCode": 1}}}
        >>> pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a"}]},
        ...        "status": {"phase": "Running", "containerStatuses": [ended]}}
        >>> has_ended(pod), has_ended(pod, "Failed"), has_ended(pod, "Succeeded")
        (True, True, False)
    """
    end = (_agent(pod).get("state") or {}).get("terminated")
    found = phase_of(pod)
    if end is not None:
        is_well = end.get("exitCode") == 0
        policy = (pod.get("spec") or {}).get("restartPolicy", "Always")
        if has_gone(pod) or policy == "Never" or (policy == "OnFailure" and is_well):
            found = "Succeeded" if is_well else "Failed"
    return found == phase if phase else found in {"Succeeded", "Failed"}


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether its first container runs, and says that it is ready."""
    runs = phase_of(pod) == "Running" and not is_terminating(pod)
    ready = _agent(pod).get("ready")
    return runs and (has_condition(pod, "Ready") if ready is None else bool(ready))


def is_disrupted(pod: Mapping[str, Any]) -> bool:
    """Whether it ends for no fault of its own."""
    reason = (pod.get("status") or {}).get("reason")
    return has_condition(pod, "DisruptionTarget") or reason in {
        "Evicted",
        "NodeLost",
        "Preempting",
        "Shutdown",
        "NodeShutdown",
    }


def is_killed_for_memory(pod: Mapping[str, Any]) -> bool:
    """Whether a container of it was ended for want of memory."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    ends = [(one.get("state") or {}).get("terminated") or {} for one in statuses]
    return any(end.get("reason") == "OOMKilled" for end in ends)


def waits_for_secret(pod: Mapping[str, Any]) -> bool:
    """Whether a container of it cannot be made from what it refers to."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    waits = [(one.get("state") or {}).get("waiting") or {} for one in statuses]
    return any(one.get("reason") == "CreateContainerConfigError" for one in waits)


def is_leaving(pod: Mapping[str, Any]) -> bool:
    """Whether it was asked to leave training."""
    return LEAVING in (pod["metadata"].get("annotations") or {})


def is_pending_unscheduled(pod: Mapping[str, Any]) -> bool:
    """Whether no node was found for it; for one that waits at a gate none is looked for."""
    waits = phase_of(pod) == "Pending" and not is_terminating(pod)
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return waits and any(
        one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable"
        for one in conditions
        if one["status"] == "False"
    )


def why_it_waits(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Returns why a pod does not begin, in a word and in a sentence; empty for no reason.

    Example:
        >>> waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
        >>> why_it_waits({"status": {"containerStatuses": [{"state": {"waiting": waiting}}]}})
        ('ImagePullBackOff', 'no such image')
    """
    status = pod.get("status") or {}
    rows = [
        (one.get("state") or {}).get("waiting") or {}
        for field in ("initContainerStatuses", "containerStatuses")
        for one in status.get(field) or ()
    ]
    rows += [
        one
        for one in status.get("conditions") or ()
        if one["type"] == "PodScheduled" and one["status"] == "False"
    ]
    usual = {"", "ContainerCreating", "PodInitializing"}
    for one in rows:
        if (reason := str(one.get("reason") or "")) not in usual:
            return reason, str(one.get("message") or "")
    return "", ""


def exit_words(pod: Mapping[str, Any]) -> str:
    """Returns how a pod has ended, for people.

    Example:
        >>> state = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        >>> exit_words({"status": {"containerStatuses": [{"state": state}]}})
        'OOMKilled (exit code 137)'
    """
    status = pod.get("status") or {}
    for one in (_agent(pod), *(status.get("containerStatuses") or ())):
        end = (one.get("state") or {}).get("terminated")
        if end:
            return f"{end.get('reason', 'Error')} (exit code {end.get('exitCode')})"
    return str(status.get("reason") or status.get("message") or "it has failed")
