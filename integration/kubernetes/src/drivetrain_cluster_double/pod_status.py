"""What a kubelet says of a pod: phases, conditions, states of its containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double.subresources import set_condition

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Ending", "ended", "is_to_restart", "running", "waiting", "with_readiness"]

_Item = dict[str, Any]


class Ending(NamedTuple):
    """How a container ended.

    Attributes:
        code: What it exited with; 128 and the number of a signal if one ended it.
        reason: `Completed`, `Error`, `OOMKilled` ...
        started: When it began, as RFC 3339 has it.
        finished: When it ended.
    """

    code: int
    reason: str
    started: str
    finished: str

    def state(self) -> _Item:
        """Returns it as the state of a container."""
        return {
            "terminated": {
                "exitCode": self.code,
                "reason": self.reason,
                "startedAt": self.started,
                "finishedAt": self.finished,
            }
        }


def is_to_restart(policy: str, code: int) -> bool:
    """Whether a container that has ended is started again."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _statuses(
    pod: _Item,
    state: _Item,
    *,
    is_ready: bool,
    num_restarts: int,
    last: _Item | None = None,
) -> list[_Item]:
    return [
        {
            "name": one["name"],
            "image": one.get("image", ""),
            "imageID": "",
            "containerID": f"double://{pod['metadata']['uid']}/{one['name']}",
            "ready": is_ready,
            "started": "running" in state,
            "restartCount": num_restarts,
            "state": state,
            "lastState": last or {},
        }
        for one in pod["spec"]["containers"]
    ]


def _with_conditions(pod: _Item, values: Mapping[str, bool], reason: str = "") -> _Item:
    for kind, is_true in values.items():
        condition: _Item = {"type": kind, "status": "True" if is_true else "False"}
        if reason and not is_true:
            condition["reason"] = reason
        pod = set_condition(pod, condition)
    return pod


def running(
    pod: _Item,
    *,
    address: str,
    started: str,
    is_ready: bool,
    num_restarts: int = 0,
    last: Ending | None = None,
) -> _Item:
    """Returns a pod whose main process runs.

    Args:
        pod: The pod.
        address: Its own.
        started: When the process began, as RFC 3339 has it.
        is_ready: Whether it is ready too.
        num_restarts: How often it was started again.
        last: How it ended the last time.
    """
    status = {
        "startTime": started,
        **(pod.get("status") or {}),
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": "127.0.0.1",
        "containerStatuses": _statuses(
            pod,
            {"running": {"startedAt": started}},
            is_ready=is_ready,
            num_restarts=num_restarts,
            last=last.state() if last else None,
        ),
    }
    values = {"Initialized": True, "ContainersReady": is_ready, "Ready": is_ready}
    return _with_conditions({**pod, "status": status}, values)


def with_readiness(pod: _Item, *, is_ready: bool) -> _Item:
    """Returns a pod that is ready, or is not."""
    status = pod["status"]
    parts = [{**one, "ready": is_ready} for one in status.get("containerStatuses", ())]
    pod = {**pod, "status": {**status, "containerStatuses": parts}}
    values = {"ContainersReady": is_ready, "Ready": is_ready}
    return _with_conditions(pod, values, "ContainersNotReady")


def waiting(
    pod: _Item, reason: str, text: str, *, num_restarts: int, last: Ending | None
) -> _Item:
    """Returns a pod whose main process does not run, but will.

    Args:
        pod: The pod.
        reason: As `CrashLoopBackOff`.
        text: For people.
        num_restarts: How often it was started again.
        last: How it ended the last time.
    """
    statuses = _statuses(
        pod,
        {"waiting": {"reason": reason, "message": text}},
        is_ready=False,
        num_restarts=num_restarts,
        last=last.state() if last else None,
    )
    status = {**(pod.get("status") or {}), "containerStatuses": statuses}
    values = {"ContainersReady": False, "Ready": False}
    return _with_conditions({**pod, "status": status}, values, "ContainersNotReady")


def ended(pod: _Item, ending: Ending, *, num_restarts: int, reason: str = "") -> _Item:
    """Returns a pod whose main process has ended for good.

    Args:
        pod: The pod.
        ending: How it ended.
        num_restarts: How often it was started again.
        reason: Of the pod itself, as `DeadlineExceeded`; empty for none.
    """
    phase = "Failed" if ending.code or reason else "Succeeded"
    statuses = _statuses(pod, ending.state(), is_ready=False, num_restarts=num_restarts)
    status = {
        **(pod.get("status") or {}),
        "phase": phase,
        "containerStatuses": statuses,
    }
    if reason:
        status["reason"] = reason
    values = {"ContainersReady": False, "Ready": False}
    why = "PodFailed" if phase == "Failed" else "PodCompleted"
    return _with_conditions({**pod, "status": status}, values, why)
